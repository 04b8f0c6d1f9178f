#include "data/loader.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "data/support.hpp"

namespace weft {
namespace {

using Samples = std::vector<std::int64_t>;

TEST(MicrobatchSamples, GivesEachRankItsSlice) {
  const BatchShape shape{.global_batch = 12, .micro_batch = 2, .dp_size = 3};
  ASSERT_EQ(shape.microbatches(), 2);
  EXPECT_EQ(microbatch_samples(shape, 24, 0, 0), (Samples{24, 25}));
  EXPECT_EQ(microbatch_samples(shape, 24, 0, 2), (Samples{28, 29}));
  EXPECT_EQ(microbatch_samples(shape, 24, 1, 1), (Samples{32, 33}));
}

TEST(MicrobatchSamples, FillsWhatDoesNotDivide) {
  const BatchShape shape{.global_batch = 5, .micro_batch = 2, .dp_size = 2};
  ASSERT_EQ(shape.microbatches(), 2);
  EXPECT_EQ(microbatch_samples(shape, 10, 0, 1), (Samples{12, 13}));
  EXPECT_EQ(microbatch_samples(shape, 10, 1, 0), (Samples{14, kNoSample}));
  EXPECT_EQ(microbatch_samples(shape, 10, 1, 1), (Samples{kNoSample, kNoSample}));
}

TEST(MicrobatchSamples, EverySampleOnceOnAnyLayoutWhileTheBatchGrows) {
  for (const auto& [micro, dp] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {2, 1}, {1, 3}, {2, 4}, {5, 7}}) {
    std::int64_t consumed = 0;
    for (const std::int64_t global : {3, 8, 16, 17}) {
      const BatchShape shape{.global_batch = global, .micro_batch = micro, .dp_size = dp};
      Samples seen;
      for (std::int64_t m = 0; m < shape.microbatches(); ++m)
        for (std::int64_t rank = 0; rank < dp; ++rank)
          for (const std::int64_t sample : microbatch_samples(shape, consumed, m, rank))
            if (sample != kNoSample) seen.push_back(sample);
      Samples all(static_cast<std::size_t>(global));
      std::iota(all.begin(), all.end(), consumed);
      EXPECT_EQ(seen, all) << micro << " x " << dp;
      consumed += global;
    }
  }
}

// `count` samples of 3 positions; sample k of the file is 10k, 10k+1, 10k+2.
GptDataset numbered(std::int32_t count, std::optional<std::int64_t> samples, std::uint32_t seed = 1234) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t k = 0; k < count; ++k)
    for (std::int32_t i = 0; i < 3; ++i) tokens.push_back(10 * k + i);
  tokens.push_back(10 * count);
  GptDatasetOptions options;
  options.sequence_length = 3;
  options.seed = seed;
  const auto size = static_cast<std::int32_t>(tokens.size());
  const std::vector<std::int32_t> first{0};
  return GptDataset(std::make_shared<MemoryTokens>(tokens, std::vector<std::int32_t>{size}, "numbered"),
                    first, samples, options);
}

std::vector<std::int32_t> rows(Loader& loader, std::int64_t consumed, std::int64_t global) {
  Batch batch;
  loader.load({.global_batch = global, .micro_batch = global, .dp_size = 1}, consumed, 0, 0, batch);
  std::vector<std::int32_t> first;
  for (std::int64_t row = 0; row < batch.rows; ++row)
    first.push_back(batch.tokens[static_cast<std::size_t>(row * batch.sequence_length)] / 10);
  return first;
}

TEST(Loader, ResumesAnywhereInSeveralEpochs) {
  const GptDataset data = numbered(24, std::nullopt);
  ASSERT_EQ(data.size(), 24);
  for (const auto order : {SampleOrder::kCyclic, SampleOrder::kSingle}) {
    // The single order needs a dataset that holds all samples that are consumed.
    const GptDataset long_data = numbered(24, 96);
    const GptDataset& used = order == SampleOrder::kCyclic ? data : long_data;
    std::vector<std::vector<std::int32_t>> straight;
    Loader once(used, order);
    for (int step = 0; step < 12; ++step) straight.push_back(rows(once, 8 * step, 8));
    for (int save = 1; save <= 11; ++save) {
      Loader resumed(used, order);
      for (int step = save; step < 12; ++step)
        EXPECT_EQ(rows(resumed, 8 * step, 8), straight[static_cast<std::size_t>(step)])
            << save << " " << step;
    }
  }
}

TEST(Loader, CyclicEpochsAreDifferentPermutations) {
  const GptDataset data = numbered(24, std::nullopt);
  Loader loader(data, SampleOrder::kCyclic);
  std::set<std::vector<std::int32_t>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    auto order = rows(loader, 24 * epoch, 24);
    orders.insert(order);
    std::ranges::sort(order);
    std::vector<std::int32_t> all(24);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
  EXPECT_EQ(orders.size(), 4u);
}

TEST(Loader, SamplesBeyondTheDatasetAreAnError) {
  const GptDataset data = numbered(4, std::nullopt);
  Loader loader(data);
  Batch batch;
  const auto text = test::message_of<Error>(
      [&] { loader.load({.global_batch = 4, .micro_batch = 4, .dp_size = 1}, 2, 0, 0, batch); });
  EXPECT_TRUE(test::holds(text, {"numbered", "sample 4", "built for 4"}));
}

TEST(Loader, FilledRowsCountNowhere) {
  const GptDataset data = numbered(6, std::nullopt);
  Loader loader(data);
  Batch batch;
  loader.load({.global_batch = 3, .micro_batch = 2, .dp_size = 1}, 3, 1, 0, batch);
  EXPECT_EQ(batch.sample_ids, (Samples{5, kNoSample}));
  EXPECT_EQ(batch.target_tokens, 3);
  EXPECT_EQ(std::vector<std::int32_t>(batch.labels.begin() + 3, batch.labels.end()),
            std::vector<std::int32_t>(3, kIgnoredLabel));
  EXPECT_EQ(std::vector<std::int32_t>(batch.tokens.begin() + 3, batch.tokens.end()),
            std::vector<std::int32_t>(3, 0));
  EXPECT_EQ(batch.position_ids, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(batch.borders[1], (std::vector<std::int32_t>{0, 3}));
}

TEST(Loader, MaskedLabelsAreIgnored) {
  const auto source = std::make_shared<MemoryTokens>(std::vector<std::int32_t>{5, 0, 6, 7},
                                                     std::vector<std::int32_t>{4}, "memory");
  GptDatasetOptions options;
  options.sequence_length = 3;
  options.end_of_document = 0;
  options.mask_end_of_document = true;
  const std::vector<std::int32_t> first{0};
  const GptDataset data(source, first, std::nullopt, options);
  Loader loader(data);
  Batch batch;
  loader.load({}, 0, 0, 0, batch);
  EXPECT_EQ(batch.tokens, (std::vector<std::int32_t>{5, 0, 6}));
  EXPECT_EQ(batch.labels, (std::vector<std::int32_t>{0, kIgnoredLabel, 7}));
  EXPECT_EQ(batch.target_tokens, 2);
}

}  // namespace
}  // namespace weft
