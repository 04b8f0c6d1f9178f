#include "data/gpt_dataset.hpp"

#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/indexed_dataset.hpp"
#include "data/support.hpp"
#include "io/safetensors.hpp"

namespace weft {
namespace {

using test::golden;
using test::holds;
using test::message_of;
using test::slurp;

std::vector<std::int32_t> first_documents(std::int32_t count) {
  std::vector<std::int32_t> documents(static_cast<std::size_t>(count));
  std::iota(documents.begin(), documents.end(), 0);
  return documents;
}

std::shared_ptr<const MemoryTokens> memory(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), 0)));
  std::iota(tokens.begin(), tokens.end(), 1);
  return std::make_shared<MemoryTokens>(tokens, lengths, "memory");
}

GptDatasetOptions length(std::int64_t sequence_length) {
  GptDatasetOptions options;
  options.sequence_length = sequence_length;
  return options;
}

// Megatron's own GPTDataset over u16.bin: every table and every recorded sample, exactly.
class GoldenSamples : public testing::TestWithParam<const char*> {
 protected:
  template <class T>
  static std::vector<std::int64_t> as_i64(const Tensor& tensor) {
    return {tensor.values<T>().begin(), tensor.values<T>().end()};
  }
  // Row i of a [n, width] table.
  template <class T, class U>
  static void expect_row(const Tensor& table, std::size_t row, const std::vector<U>& ours, const char* what) {
    const auto width = static_cast<std::size_t>(table.columns());
    const auto theirs = table.values<T>().subspan(row * width, width);
    ASSERT_EQ(ours.size(), width) << what;
    for (std::size_t i = 0; i < width; ++i)
      ASSERT_EQ(static_cast<double>(ours[i]), static_cast<double>(theirs[i]))
          << what << " [" << row << ", " << i << "]";
  }
};

TEST_P(GoldenSamples, AreExact) {
  const auto manifest = nlohmann::json::parse(slurp(golden("data/manifest.json")));
  const auto c = manifest["cases"][GetParam()];
  GptDatasetOptions options;
  options.sequence_length = c["sequence_length"];
  options.seed = c["seed"];
  options.add_extra_token = c["add_extra_token_to_sequence"];
  options.drop_last_partial = c["split"] != "valid" || c["drop_last_partial_validation_sequence"];
  options.pad = c["pad"];
  options.end_of_document = manifest["eod"].get<std::int32_t>();
  options.reset_position_ids = c["reset_position_ids"];
  options.reset_attention_mask = c["reset_attention_mask"];
  options.mask_end_of_document = c["eod_mask_loss"];
  options.inter_document_masking = c["inter_document_masking"];
  const auto requested = c["num_samples_requested"];
  const auto chosen = c["indices"].get<std::vector<std::int32_t>>();
  const GptDataset data(std::make_shared<IndexedDataset>(golden("data/u16")), chosen,
                        requested.is_null() ? std::nullopt : std::optional(requested.get<std::int64_t>()),
                        options);
  ASSERT_EQ(data.size(), c["len"].get<std::int64_t>());

  const SafetensorsFile file(golden(std::string("data/") + GetParam() + ".safetensors"));
  EXPECT_EQ((std::vector<std::int64_t>{data.index().documents.begin(), data.index().documents.end()}),
            as_i64<std::int32_t>(file.get("document_index")));
  EXPECT_EQ((std::vector<std::int64_t>{data.index().shuffle.begin(), data.index().shuffle.end()}),
            as_i64<std::int64_t>(file.get("shuffle_index")));
  std::vector<std::int64_t> starts;
  for (const auto& start : data.index().starts) {
    starts.push_back(start.position);
    starts.push_back(start.offset);
  }
  EXPECT_EQ(starts, as_i64<std::int64_t>(file.get("sample_index")));

  const Tensor tokens = file.get("tokens"), labels = file.get("labels"), mask = file.get("loss_mask"),
               positions = file.get("position_ids");
  ASSERT_GT(tokens.dim(0), 0);
  GptSample sample;
  for (std::size_t i = 0; i < static_cast<std::size_t>(tokens.dim(0)); ++i) {
    data.sample(static_cast<std::int64_t>(i), sample);
    expect_row<std::int64_t>(tokens, i, sample.tokens, "tokens");
    expect_row<std::int64_t>(labels, i, sample.labels, "labels");
    expect_row<float>(mask, i, sample.loss_mask, "loss_mask");
    expect_row<std::int64_t>(positions, i, sample.position_ids, "position_ids");
    if (file.contains("cu_seqlens")) {  // filled up to sequence_length + 1 entries there
      auto borders = sample.borders;
      borders.resize(static_cast<std::size_t>(options.sequence_length) + 1,
                     static_cast<std::int32_t>(options.sequence_length));
      expect_row<std::int32_t>(file.get("cu_seqlens"), i, borders, "cu_seqlens");
    }
    if (file.contains("attention_mask_first4") && i < 4 && options.reset_attention_mask) {
      // True there: position k is hidden from position q.
      const auto hidden = file.get("attention_mask_first4").values<std::uint8_t>().subspan(i * 256, 256);
      for (std::int32_t q = 0; q < 16; ++q)
        for (std::int32_t k = 0; k < 16; ++k) {
          const auto piece = [&](std::int32_t at) {
            return std::upper_bound(sample.borders.begin(), sample.borders.end(), at) -
                   sample.borders.begin();
          };
          const bool seen = k <= q && piece(k) == piece(q);
          EXPECT_EQ(hidden[static_cast<std::size_t>(q * 16 + k)] == 0, seen) << i << " " << q << " " << k;
        }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, GoldenSamples,
                         testing::Values("gpt_one_epoch_none", "gpt_one_epoch", "gpt_two_epochs_full_final",
                                         "gpt_separate_final_epoch", "gpt_many_epochs",
                                         "gpt_valid_keep_partial", "gpt_valid_drop_partial",
                                         "gpt_no_extra_token", "gpt_reset_all", "gpt_reset_pos_only",
                                         "gpt_eod_mask_only", "gpt_inter_document_masking", "gpt_subset_docs",
                                         "gpt_pad_collision_free"),
                         [](const auto& param) { return std::string(param.param); });

TEST(SplitRanges, FollowsMegatron) {
  using Ranges = std::array<SplitRange, 3>;
  EXPECT_EQ(split_ranges("969,30,1", 1000), (Ranges{{{0, 969}, {969, 999}, {999, 1000}}}));
  EXPECT_EQ(split_ranges("3,1,1", 14), (Ranges{{{0, 8}, {8, 11}, {11, 14}}}));
  EXPECT_EQ(split_ranges("98,1,1", 4), (Ranges{{{0, 4}, {4, 4}, {4, 4}}}));
  EXPECT_EQ(split_ranges("1", 7), (Ranges{{{0, 7}, {7, 7}, {7, 7}}}));
  EXPECT_EQ(split_ranges("0.5,0.5", 5), (Ranges{{{0, 2}, {2, 5}, {5, 5}}}));  // 2.5 rounds to even
  for (const char* bad : {"", "a", "1,,1", "1,2,3,4", "0,0,0", "-1,2", "nan", "inf", "1,2;3", "1 2"})
    EXPECT_TRUE(holds(message_of<ConfigError>([&] { split_ranges(bad, 9); }), {"--split"})) << bad;
}

TEST(GptSplits, NamesTheEmptySplit) {
  const auto source = memory({10, 10, 10, 10});
  const auto text = message_of<ConfigError>([&] {
    build_gpt_splits(source, "98,1,1", SplitBy::kDocuments, {8, 4, 2}, length(16));
  });
  EXPECT_TRUE(holds(
      text, {"--split 98,1,1", "validation split gets 0 of the 4 documents", "test split", "--eval-iters"}));
  const GptSplits splits = build_gpt_splits(source, "98,1,1", SplitBy::kDocuments, {8, 0, 0}, length(16));
  EXPECT_GE(splits.train->size(), 8);
  EXPECT_EQ(splits.validation, nullptr);
}

TEST(GptSplits, CutsOneTextByTokens) {
  const GptSplits splits =
      build_gpt_splits(memory({100}), "80,20", SplitBy::kTokens, {std::nullopt, std::nullopt, 0}, length(9));
  EXPECT_EQ(splits.train->size(), 8);
  ASSERT_EQ(splits.validation->size(), 2);
  GptSample sample;
  std::vector<std::int32_t> seen;
  for (int i = 0; i < 2; ++i) {
    splits.validation->sample(i, sample);
    seen.insert(seen.end(), sample.tokens.begin(), sample.tokens.end());
  }
  std::ranges::sort(seen);
  EXPECT_EQ(seen.front(), 81);
  EXPECT_EQ(seen.back(), 98);
}

TEST(TokenRange, KeepsBordersAndEmptyDocuments) {
  const auto source = memory({4, 0, 3, 0, 5});
  const TokenRange range(source, 2, 9);
  EXPECT_TRUE(std::ranges::equal(range.lengths(), std::vector<std::int32_t>{2, 0, 3, 0, 2}));
  EXPECT_EQ(read_all(range), (std::vector<std::int32_t>{3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(TokenRange(source, 5, 5).documents(), 0);
}

TEST(GptDataset, TinyDocumentGivesManyEpochs) {
  const GptDataset data(memory({5}), first_documents(1), 3 * 2, length(16));
  EXPECT_EQ(data.index().epochs, 20);
  EXPECT_EQ(data.size(), 6);
  GptSample sample;
  data.sample(0, sample);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(sample.labels[i], sample.tokens[i] % 5 + 1);
}

TEST(GptDataset, TooLittleDataIsSaid) {
  EXPECT_TRUE(holds(
      message_of<ConfigError>([] { GptDataset(memory({5}), first_documents(1), std::nullopt, length(16)); }),
      {"memory", "5 tokens", "16"}));
  EXPECT_TRUE(holds(message_of<ConfigError>([] {
                      GptDataset(memory({0, 0}), first_documents(2), 4, length(16));
                    }),
                    {"memory", "2 documents", "0 tokens", "16"}));
  // A million empty documents and one token would need tables without end.
  std::vector<std::int32_t> lengths(1'000'000, 0);
  lengths.back() = 1;
  EXPECT_TRUE(holds(message_of<ConfigError>(
                        [&] { GptDataset(memory(lengths), first_documents(1'000'000), 1000, length(16)); }),
                    {"16001 passes", "1000000 documents"}));
}

TEST(GptDataset, NamesIdsOutsideTheVocabulary) {
  GptDatasetOptions options = length(8);
  options.vocabulary = 15;
  const GptDataset data(memory({9, 9}), first_documents(2), 2, options);
  GptSample sample;
  const auto text = message_of<Error>([&] {
    for (int i = 0; i < 2; ++i) data.sample(i, sample);
  });
  EXPECT_TRUE(holds(text, {"memory", "document 1", "id 15", "vocabulary of 15"}));
}

TEST(GptDataset, ResetsAndMasksAtEndOfDocument) {
  const auto source = std::make_shared<MemoryTokens>(
      std::vector<std::int32_t>{11, 12, 0, 13, 14, 15, 0, 16, 17}, std::vector<std::int32_t>{9}, "memory");
  GptDatasetOptions options = length(8);
  options.end_of_document = 0;
  options.reset_position_ids = options.reset_attention_mask = options.mask_end_of_document = true;
  const GptDataset data(source, first_documents(1), std::nullopt, options);
  GptSample sample;
  data.sample(0, sample);
  EXPECT_EQ(sample.position_ids, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2, 3, 0}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{1, 1, 0, 1, 1, 1, 0, 1}));
  EXPECT_EQ(sample.borders, (std::vector<std::int32_t>{0, 3, 7, 8}));
}

TEST(GptDataset, IndexOfALongStreamIsQuick) {
  std::vector<std::int32_t> lengths(200'000, 5'000);  // a billion tokens
  const auto begin = std::chrono::steady_clock::now();
  const GptIndex index =
      build_gpt_index(lengths, first_documents(200'000), std::nullopt, length(2048), "numbers");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(std::ssize(index.shuffle), 488'281);
  EXPECT_LT(took.count(), 2.0);
}

}  // namespace
}  // namespace weft
