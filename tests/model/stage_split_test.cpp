#include "model/stage_split.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "core/check.hpp"

namespace weft {
namespace {

using Counts = std::vector<std::int64_t>;

StageSplit split(std::int64_t layers, std::int64_t ranks, std::int64_t chunks = 1) {
  return {.num_layers = layers, .ranks = ranks, .chunks = chunks};
}

StageSplit with_layout(const std::string& layout, std::int64_t layers, std::int64_t ranks,
                       std::int64_t chunks = 1) {
  StageSplit s = split(layers, ranks, chunks);
  s.pipeline_model_parallel_layout = layout;
  return s;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Layers of each stage, after checking what holds of every split.
Counts counts(const StageSplit& s) {
  EXPECT_EQ(joined(problems_of(s)), "");
  Counts layers;
  std::int64_t next = 0;
  const std::vector<StageRange> stages = split_stages(s);
  EXPECT_EQ(static_cast<std::int64_t>(stages.size()), s.stages());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    EXPECT_EQ(stages[i].embedding, i == 0);
    EXPECT_EQ(stages[i].loss, i + 1 == stages.size());
    EXPECT_EQ(stages[i].first_layer, next);
    next += stages[i].layers;
    layers.push_back(stages[i].layers);
  }
  EXPECT_EQ(next, s.num_layers);
  return layers;
}

TEST(StageSplit, AlikeWithoutOptions) {
  EXPECT_EQ(counts(split(3, 1)), (Counts{3}));
  EXPECT_EQ(counts(split(6, 3)), (Counts{2, 2, 2}));
  EXPECT_EQ(counts(split(8, 2, 2)), (Counts{2, 2, 2, 2}));
  // Chunk c of rank r is stage c P + r: rank 0 has the layers 0 and 2, rank 1 the layers 1 and 3.
  const std::vector<StageRange> stages = split_stages(split(4, 2, 2));
  EXPECT_EQ(stages[0].first_layer, 0);
  EXPECT_EQ(stages[2].first_layer, 2);
  EXPECT_EQ(stages[1].first_layer, 1);
  EXPECT_EQ(stages[3].first_layer, 3);
}

TEST(StageSplit, FirstAndLastRank) {
  StageSplit s = split(3, 2);
  s.decoder_first_pipeline_num_layers = 1;
  EXPECT_EQ(counts(s), (Counts{1, 2}));
  s.decoder_last_pipeline_num_layers = 2;
  EXPECT_EQ(counts(s), (Counts{1, 2}));
  s.decoder_first_pipeline_num_layers = 0;
  EXPECT_EQ(counts(s), (Counts{1, 2}));
  s = split(10, 4);
  s.decoder_first_pipeline_num_layers = 1;
  EXPECT_EQ(counts(s), (Counts{1, 3, 3, 3}));
  s.decoder_last_pipeline_num_layers = 5;
  EXPECT_EQ(counts(s), (Counts{1, 2, 2, 5}));
}

// The numbers are a rank's, over its chunks alike.
TEST(StageSplit, FirstAndLastRankOfSeveralChunks) {
  StageSplit s = split(14, 3, 2);
  s.decoder_first_pipeline_num_layers = 2;
  s.decoder_last_pipeline_num_layers = 4;
  EXPECT_EQ(counts(s), (Counts{1, 4, 2, 1, 4, 2}));
  s.v_shaped = true;
  EXPECT_EQ(counts(s), (Counts{1, 4, 2, 2, 4, 1}));
}

TEST(StageSplit, EmbeddingAndLossCountAsLayers) {
  StageSplit s = split(7, 4);
  s.account_for_embedding_in_pipeline_split = true;
  EXPECT_EQ(counts(s), (Counts{1, 2, 2, 2}));
  s = split(7, 2, 2);
  s.account_for_loss_in_pipeline_split = true;
  EXPECT_EQ(counts(s), (Counts{2, 2, 2, 1}));
  s = split(2, 4);
  s.account_for_embedding_in_pipeline_split = s.account_for_loss_in_pipeline_split = true;
  EXPECT_EQ(counts(s), (Counts{0, 1, 1, 0}));
  s = split(5, 1);
  s.account_for_embedding_in_pipeline_split = s.account_for_loss_in_pipeline_split = true;
  EXPECT_EQ(counts(s), (Counts{5}));
}

TEST(StageSplit, LayoutStrings) {
  EXPECT_EQ(counts(with_layout("EttL", 2, 1)), (Counts{2}));
  EXPECT_EQ(counts(with_layout("Et|ttL", 3, 2)), (Counts{1, 2}));
  EXPECT_EQ(counts(with_layout("E|t*3||L", 3, 2, 2)), (Counts{0, 3, 0, 0}));
  EXPECT_EQ(counts(with_layout("Et*2,|,(t|)*2,L", 4, 4)), (Counts{2, 1, 1, 0}));
  EXPECT_EQ(counts(with_layout("E|(t|tt)*2L", 6, 4)), (Counts{0, 1, 3, 2}));
  EXPECT_EQ(counts(with_layout("E((t*2|)*2t|)*2L", 10, 7)), (Counts{2, 2, 1, 2, 2, 1, 0}));
  EXPECT_EQ(counts(with_layout("Et|*3tL", 2, 4)), (Counts{1, 0, 0, 1}));
  EXPECT_EQ(counts(with_layout("Et*12L", 12, 1)), (Counts{12}));
  // DeepSeek-V3's 61 layers on 16 ranks of 2 chunks, without its prediction layer.
  const Counts large = counts(with_layout("Et*3|(tt|)*29,|L", 61, 16, 2));
  EXPECT_EQ(large.front(), 3);
  EXPECT_EQ(large[1], 2);
  EXPECT_EQ(large[29], 2);
  EXPECT_EQ(large[30], 0);
}

TEST(StageSplit, StagesOfALayout) {
  EXPECT_EQ(stages_of_layout("Et|(t|)*6L"), 8);
  EXPECT_EQ(stages_of_layout("EtL"), 1);
  EXPECT_EQ(stages_of_layout(""), 0);
  EXPECT_EQ(stages_of_layout("E(t"), 0);
  std::string deep = "t|";
  for (int i = 0; i < 100; ++i) deep = "(" + deep + ")*1";
  EXPECT_EQ(stages_of_layout("E" + deep + "L"), 2);
  EXPECT_EQ(stages_of_layout("E(" + deep + ")*1L"), 0);  // too deep to be read
}

TEST(StageSplit, EachMistakeIsNamedWithItsNumbers) {
  const auto first = [](StageSplit s, std::int64_t layers) {
    s.decoder_first_pipeline_num_layers = layers;
    return s;
  };
  const auto last = [](StageSplit s, std::int64_t layers) {
    s.decoder_last_pipeline_num_layers = layers;
    return s;
  };
  const auto account = [](StageSplit s) {
    s.account_for_loss_in_pipeline_split = true;
    return s;
  };
  const char* const layout = "--pipeline-model-parallel-layout";
  const struct {
    StageSplit split;
    std::vector<const char*> parts;
  } cases[] = {
      {split(3, 2),
       {"--num-layers 3", "2 = --pipeline-model-parallel-size 2", "--decoder-first-pipeline-num-layers",
        "--account-for-loss-in-pipeline-split", layout}},
      {split(30, 4), {"--num-layers 30", "--pipeline-model-parallel-size 4"}},
      {split(4, 4, 2),
       {"--num-layers 4", "8 = --pipeline-model-parallel-size 4 x --num-virtual-stages-per-pipeline-rank 2"}},
      {split(0, 2), {"--num-layers 0"}},
      {split(4, 0), {"--pipeline-model-parallel-size 0"}},
      {split(4, 2, 0), {"--num-virtual-stages-per-pipeline-rank 0"}},
      {account(split(4, 2)), {"--num-layers 4", "--account-for-loss-in-pipeline-split", "makes 5"}},
      {first(split(4, 1), 2), {"--decoder-first-pipeline-num-layers 2", "--pipeline-model-parallel-size"}},
      {last(split(4, 1), 4), {"--decoder-last-pipeline-num-layers 4", "--pipeline-model-parallel-size"}},
      {first(split(4, 2), 5), {"--decoder-first-pipeline-num-layers 5", "--num-layers 4"}},
      {first(split(4, 2), -1), {"--decoder-first-pipeline-num-layers -1"}},
      {first(last(split(5, 2), 2), 2),
       {"--decoder-first-pipeline-num-layers 2", "--decoder-last-pipeline-num-layers 2", "make 4 layers",
        "--num-layers is 5"}},
      {first(split(6, 3), 1), {"--decoder-first-pipeline-num-layers 1", "leaves 5", "2 ranks", layout}},
      {first(split(3, 3), 3), {"--decoder-first-pipeline-num-layers 3", "leaves 0"}},
      {first(split(7, 2, 2), 3),
       {"--decoder-first-pipeline-num-layers 3 is not divisible by --num-virtual-stages-per-pipeline-rank "
        "2"}},
      {last(split(5, 2, 2), 2), {"--decoder-last-pipeline-num-layers 2", "leaves 3"}},
      {account(first(split(4, 2), 1)),
       {"--decoder-first-pipeline-num-layers 1", "--account-for-loss-in-pipeline-split"}},
      {first(with_layout("Et|tL", 2, 2), 1), {layout, "leave out --decoder-first-pipeline-num-layers 1"}},
      {account(with_layout("Et|tL", 2, 2)), {layout, "--account-for-loss-in-pipeline-split"}},
      {with_layout("Et|ttL", 4, 2), {layout, "Et|ttL", "3 layers", "--num-layers is 4"}},
      {with_layout("Et|t|tL", 3, 2), {layout, "3 stages", "2 = --pipeline-model-parallel-size 2"}},
      {with_layout("tE|tL", 2, 2), {layout, "(E) must be the first"}},
      {with_layout("|EttL", 2, 2), {layout, "(E) must be the first"}},
      {with_layout("Et|Lt", 2, 2), {layout, "(L) must be the last"}},
      {with_layout("EttL|", 2, 2), {layout, "(L) must be the last"}},
      {with_layout("Et|EtL", 2, 2), {layout, "2 embeddings (E)"}},
      {with_layout("EtL|tL", 2, 2), {layout, "2 losses (L)"}},
      {with_layout("t|tL", 2, 2), {layout, "0 embeddings (E)"}},
      {with_layout("Et|t", 2, 2), {layout, "0 losses (L)"}},
      {with_layout("Et|tmL", 2, 2), {layout, "m (a multi-token prediction layer)"}},
      {with_layout("Et|xtL", 2, 2), {layout, "'x' is unknown"}},
      {with_layout("Et|(tL", 2, 2), {layout, "a ( without its )"}},
      {with_layout("Et|t)L", 2, 2), {layout, "a ) without its ("}},
      {with_layout("Et|(t)L", 2, 2), {layout, "needs *n"}},
      {with_layout("E((t)|)*2L", 2, 3), {layout, "needs *n"}},
      {with_layout("Et*|tL", 2, 2), {layout, "needs a number"}},
      {with_layout("E*2*2|tL", 2, 2), {layout, "a * must follow"}},
      {with_layout("Et*99999999999999999999|tL", 2, 2), {layout, "more than 1048576"}},
      {with_layout(std::string(200'000, '('), 2, 2), {layout, "more than 100 groups"}},
      {with_layout("E((t*1000)*1000)*1000L", 2, 1), {layout, "more than 1048576"}},
  };
  for (const auto& bad : cases) {
    const std::vector<std::string> problems = problems_of(bad.split);
    EXPECT_EQ(problems.size(), 1u) << joined(problems) << "for " << bad.parts.back();
    for (const char* part : bad.parts) {
      EXPECT_NE(joined(problems).find(part), std::string::npos) << part << "\nin " << joined(problems);
    }
    EXPECT_THROW(split_stages(bad.split), ConfigError);
  }
}

TEST(StageSplit, AllMistakesAtOnce) {
  EXPECT_EQ(problems_of(with_layout("ttE|t", 2, 3)).size(), 4u)
      << joined(problems_of(with_layout("ttE|t", 2, 3)));
  StageSplit s = split(9, 3, 2);
  s.decoder_first_pipeline_num_layers = 1;
  s.decoder_last_pipeline_num_layers = 3;
  EXPECT_EQ(problems_of(s).size(), 3u) << joined(problems_of(s));
}

TEST(StageSplit, OneLineForTheLog) {
  EXPECT_EQ(to_string(split_stages(split(1, 1))), "stages: 0 [embedding, layer 0, loss]; 1 layer");
  EXPECT_EQ(to_string(split_stages(with_layout("Et*3|t||L", 4, 4))),
            "stages: 0 [embedding, layers 0-2], 1 [layer 3], 2 [], 3 [loss]; 4 layers");
}

}  // namespace
}  // namespace weft
