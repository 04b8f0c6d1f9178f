#include "infer/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "comm/local/launcher.hpp"
#include "core/gpu.hpp"

namespace weft {
namespace {

using Tokens = GenerateRequest::Tokens;

// A tiny model whose weights are large enough for its choices to be far apart. No groups of rotary keys:
// latent attention.
ModelConfig tiny(PositionEmbedding positions, std::int64_t groups) {
  ModelConfig c;
  c.num_layers = 2;
  c.hidden_size = 24;
  c.num_attention_heads = 4;
  c.num_query_groups = groups;
  c.ffn_hidden_size = 40;
  c.vocab_size = 97;
  c.make_vocab_size_divisible_by = 16;
  c.max_position_embeddings = 64;
  c.position_embedding = positions;
  c.tied = false;
  c.init_method_std = 0.4;
  if (positions == PositionEmbedding::kRope) {
    c.normalization = Normalization::kRmsNorm;
    c.activation = ops::Activation::kSilu;
    c.gated = true;
    c.add_bias_linear = false;
    c.latent = {.enabled = groups == 0,
                .q_lora_rank = 8,
                .kv_lora_rank = 10,
                .qk_head_dim = 6,
                .qk_pos_emb_head_dim = 4,
                .v_head_dim = 5};
  }
  return c;
}

void draw_weights(Lane& lane, ParamBuffer& buffer) {
  for (const ParamBuffer::Slot& slot : buffer.slots()) {
    initialize(lane, *slot.param, ParamBuffer::piece(buffer.weights(), slot), RandomKey{99});
  }
}

Tokens prompt_of(std::size_t length) {
  Tokens t(length);
  for (std::size_t i = 0; i < length; ++i) t[i] = static_cast<std::int32_t>((i * 37 + length * 11) % 97);
  return t;
}

// A generator with memory and weights of its own.
struct Fixture {
  explicit Fixture(const ModelConfig& config, DType dtype = DType::kF32, std::size_t bytes = 32 << 20)
      : arena(Arena::host(bytes)),
        workers(1),
        lane{*arena, workers, {}},
        tp(self_communicator("tp")),
        generator(lane, *tp, config, dtype, 64) {
    draw_weights(lane, generator.weights());
  }
  std::unique_ptr<Arena> arena;
  Workers workers;
  Lane lane;
  std::unique_ptr<Communicator> tp;
  Generator generator;
};

using StepLogits = std::map<std::size_t, std::vector<std::vector<double>>>;  // by row

OnToken keep(StepLogits& steps) {
  return [&steps](const GeneratedToken& t) { steps[t.row].emplace_back(t.logits.begin(), t.logits.end()); };
}

class Models : public testing::TestWithParam<std::tuple<PositionEmbedding, std::int64_t>> {
 protected:
  ModelConfig config() const { return tiny(std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

// The logits of the last position, everything before it computed again and no cache.
std::vector<double> recomputed(Fixture& f, const GptModel& model, const Tokens& tokens) {
  Microbatch mb;
  mb.saved = SavedStack(false);
  mb.batch.tokens = f.lane.alloc(DType::kI32, {1, static_cast<std::int64_t>(tokens.size())}, "tokens");
  std::copy(tokens.begin(), tokens.end(), mb.batch.tokens.data<std::int32_t>());
  const Tensor logits = model.last_logits(f.lane, mb);
  const float* x = logits.data<float>();
  return {x, x + 97};
}

TEST_P(Models, CacheGivesWhatRecomputationGives) {
  Fixture f(config());
  const std::unique_ptr<GptModel> whole =
      build(evaluation_spec(resolved(config())), f.lane, {f.generator.params(), *f.tp, DType::kF32, 64});
  StepLogits steps;
  const Tokens prompt = prompt_of(5);
  const Tokens out = f.generator.generate(
      {.prompts = {prompt}, .max_new_tokens = 20, .sampling = {.temperature = 0}}, keep(steps))[0];
  ASSERT_EQ(out.size(), 25u);
  for (std::size_t n = 5; n < 25; ++n) {
    const std::vector<double> expected = recomputed(f, *whole, Tokens(out.begin(), out.begin() + n));
    const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
    ASSERT_EQ(out[n], best) << "token " << n;
    const std::vector<double>& got = steps[0][n - 5];
    ASSERT_EQ(got.size(), 97u);  // no padding
    for (std::size_t i = 0; i < 97; ++i)
      EXPECT_NEAR(got[i], expected[i], 2e-5) << "token " << n << " logit " << i;
  }
}

TEST_P(Models, RowsAreTheSameAloneAndTogether) {
  Fixture f(config());
  std::map<std::size_t, Tokens> alone;
  std::map<std::size_t, std::vector<std::vector<double>>> alone_logits;
  for (const std::size_t n : {1, 5, 12}) {
    StepLogits steps;
    alone[n] = f.generator.generate(
        {.prompts = {prompt_of(n)}, .max_new_tokens = 16, .sampling = {.temperature = 0}}, keep(steps))[0];
    alone_logits[n] = steps[0];
    EXPECT_EQ(alone[n].size(), n + 16);
  }
  std::vector<std::size_t> order = {1, 5, 12};
  do {
    StepLogits steps;
    GenerateRequest request{.prompts = {}, .max_new_tokens = 16, .sampling = {.temperature = 0}};
    for (const std::size_t n : order) request.prompts.push_back(prompt_of(n));
    const std::vector<Tokens> together = f.generator.generate(request, keep(steps));
    for (std::size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(together[row], alone[order[row]]);
      for (std::size_t step = 0; step < 16; ++step) {
        for (std::size_t i = 0; i < 97; ++i) {
          ASSERT_NEAR(steps[row][step][i], alone_logits[order[row]][step][i], 1e-5);
        }
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(Models, DrawsAreTheSameAloneAndTogether) {
  Fixture f(config());
  const SamplingOptions sampling{.temperature = 1, .top_k = 20, .top_p = 0.9, .seed = 7};
  const std::vector<Tokens> together = f.generator.generate(
      {.prompts = {prompt_of(12), prompt_of(1), prompt_of(5)}, .max_new_tokens = 16, .sampling = sampling});
  const Tokens alone = f.generator.generate(
      {.prompts = {prompt_of(5)}, .sequences = {2}, .max_new_tokens = 16, .sampling = sampling})[0];
  EXPECT_EQ(alone, together[2]);
}

TEST_P(Models, TensorParallelRanksAgree) {
  const ModelConfig c = config();
  if (c.num_query_groups == 1) return;  // cannot be cut
  GenerateRequest request{.prompts = {prompt_of(3), prompt_of(7), prompt_of(4)},
                          .max_new_tokens = 24,
                          .sampling = {.temperature = 1, .seed = 7}};
  Fixture one(c);
  request.end_tokens = {one.generator.generate(request)[1].at(15)};
  const std::vector<Tokens> expected = one.generator.generate(request);
  EXPECT_LE(expected[1].size(), 16u);  // rows stop at different places
  std::vector<std::vector<Tokens>> got(2);
  std::vector<std::unique_ptr<Arena>> arenas;
  Workers planner(1);
  for (int rank = 0; rank < 2; ++rank) {
    arenas.push_back(Arena::host(
        generation_memory(DeviceKind::kCpu, planner, c, DType::kF32, rank, 2, {&request, 1}).arena));
  }
  run_local_ranks({.ranks = 2}, [&](Communicator& tp) {
    const auto rank = static_cast<std::size_t>(tp.rank());
    Workers workers(1);
    Lane lane{*arenas[rank], workers, {}};
    Generator generator(lane, tp, c, DType::kF32, request.positions());
    draw_weights(lane, generator.weights());
    got[rank] = generator.generate(request);
  });
  EXPECT_EQ(got[0], expected);
  EXPECT_EQ(got[1], expected);
}

TEST_P(Models, PlannedMemoryIsEnoughAndIsUsed) {
  const std::vector<GenerateRequest> requests = {
      {.prompts = {prompt_of(12), prompt_of(1)}, .max_new_tokens = 20, .sampling = {}},
      {.prompts = {prompt_of(30)}, .max_new_tokens = 34, .sampling = {}}};
  Workers workers(1);
  const GenerationMemory memory =
      generation_memory(DeviceKind::kCpu, workers, config(), DType::kF32, 0, 1, requests);
  const std::size_t bytes = memory.arena;
  Fixture f(config(), DType::kF32, bytes);
  for (const GenerateRequest& request : requests) f.generator.generate(request);
  EXPECT_EQ(f.arena->high_water(), bytes);
}

// What ranks do before they meet on a device: on the memory of the run, and nothing is left of it.
TEST_P(Models, ARehearsalFitsIntoThePlan) {
  const std::vector<GenerateRequest> requests = {
      {.prompts = {prompt_of(12), prompt_of(1)}, .max_new_tokens = 20, .sampling = {}},
      {.prompts = {prompt_of(30)}, .max_new_tokens = 34, .sampling = {}}};
  Workers workers(1);
  const GenerationMemory memory =
      generation_memory(DeviceKind::kCpu, workers, config(), DType::kF32, 0, 1, requests);
  Fixture f(config(), DType::kF32, memory.arena);
  const std::size_t resident = f.arena->in_use();
  for (const GenerateRequest& request : requests) f.generator.rehearse(request);
  EXPECT_EQ(f.arena->in_use(), resident);
  EXPECT_LE(f.arena->high_water(), memory.arena);
  // The parts that a plan names.
  EXPECT_EQ(memory.weights, f.generator.weights().weights().bytes());
  const ModelConfig c = resolved(config());
  const std::int64_t layers = 2, positions = 64, width = c.num_query_groups * c.kv_channels;
  EXPECT_EQ(memory.cache, static_cast<std::size_t>(layers * 2 * positions * width * 4));
  EXPECT_LT(memory.weights + memory.cache, memory.arena);
}

// Planned for a GPU, where there need be none.
TEST_P(Models, MemoryIsPlannedForGpus) {
  if (!built_with_cuda()) GTEST_SKIP() << "this build knows no sizes of CUDA's operations";
  const GenerateRequest request{
      .prompts = {prompt_of(12), prompt_of(1)}, .max_new_tokens = 20, .sampling = {}};
  Workers workers(1);
  const auto plan = [&](DType dtype, int rank, int ranks) {
    return generation_memory(DeviceKind::kCuda, workers, config(), dtype, rank, ranks, {&request, 1});
  };
  EXPECT_GT(plan(DType::kF32, 0, 1).arena, plan(DType::kBF16, 0, 1).arena);
  if (config().num_query_groups == 1) return;  // cannot be cut
  EXPECT_EQ(plan(DType::kBF16, 0, 2).arena, plan(DType::kBF16, 1, 2).arena);
}

INSTANTIATE_TEST_SUITE_P(
    All, Models,
    testing::Combine(testing::Values(PositionEmbedding::kLearnedAbsolute, PositionEmbedding::kRope),
                     testing::Values(std::int64_t{4}, std::int64_t{2}, std::int64_t{1}, std::int64_t{0})),
    [](const auto& p) {
      return std::string(std::get<0>(p.param) == PositionEmbedding::kRope ? "rotary" : "learned") +
             std::to_string(std::get<1>(p.param)) + "groups";
    });

TEST(Generator, LongPromptsComeInPieces) {
  ModelConfig c = tiny(PositionEmbedding::kRope, 2);
  c.max_position_embeddings = 700;
  const auto arena = Arena::host(64 << 20);
  Workers workers(1);
  Lane lane{*arena, workers, {}};
  const auto tp = self_communicator("tp");
  Generator generator(lane, *tp, c, DType::kF32, 700);
  draw_weights(lane, generator.weights());
  const Tokens prompt = prompt_of(600);
  StepLogits steps;
  generator.generate({.prompts = {prompt}, .max_new_tokens = 1, .sampling = {.temperature = 0}}, keep(steps));
  const std::unique_ptr<GptModel> whole =
      build(evaluation_spec(resolved(c)), lane, {generator.params(), *tp, DType::kF32, 700});
  Microbatch mb;
  mb.saved = SavedStack(false);
  mb.batch.tokens = lane.alloc(DType::kI32, {1, 600}, "tokens");
  std::copy(prompt.begin(), prompt.end(), mb.batch.tokens.data<std::int32_t>());
  const Tensor logits = whole->last_logits(lane, mb);
  for (std::size_t i = 0; i < 97; ++i) EXPECT_NEAR(steps[0][0][i], logits.data<float>()[i], 2e-5);
}

TEST(Generator, EveryTokenTakesTheSameMemory) {
  Fixture f(tiny(PositionEmbedding::kRope, 2));
  std::vector<std::size_t> in_use;
  std::size_t high = 0;
  f.generator.generate({.prompts = {prompt_of(8)}, .max_new_tokens = 40, .sampling = {}},
                       [&](const GeneratedToken&) {
                         in_use.push_back(f.arena->in_use());
                         if (high == 0) high = f.arena->high_water();
                       });
  for (const std::size_t bytes : in_use) EXPECT_EQ(bytes, in_use[0]);
  EXPECT_EQ(f.arena->high_water(), high);
}

TEST(Generator, StopsAtAnEndToken) {
  Fixture f(tiny(PositionEmbedding::kLearnedAbsolute, 4));
  GenerateRequest request{.prompts = {prompt_of(5)}, .max_new_tokens = 20, .sampling = {.temperature = 0}};
  const Tokens all = f.generator.generate(request)[0];
  const std::int32_t end = all[9];
  request.end_tokens = {end};
  const Tokens stopped = f.generator.generate(request)[0];
  const auto first = std::find(all.begin() + 5, all.end(), end);
  EXPECT_EQ(stopped, Tokens(all.begin(), first + 1));
  // An end token in the prompt ends nothing.
  request.prompts = {{end, 1, 2, end}};
  EXPECT_GT(f.generator.generate(request)[0].size(), 4u);
}

TEST(Generator, Bf16Runs) {
  Fixture f(tiny(PositionEmbedding::kRope, 2), DType::kBF16);
  const Tokens out = f.generator.generate(
      {.prompts = {prompt_of(5)}, .max_new_tokens = 8, .sampling = {.temperature = 0}})[0];
  EXPECT_EQ(out.size(), 13u);
}

TEST(Generator, ProblemsComeTogetherBeforeAnything) {
  const ModelConfig c = resolved(tiny(PositionEmbedding::kLearnedAbsolute, 4));
  const GenerateRequest request{.prompts = {prompt_of(10), {}, {1, 97}},
                                .max_new_tokens = 60,
                                .sampling = {.temperature = -1, .top_k = -1, .top_p = 1.5}};
  const std::vector<std::string> problems = problems_of(request, c);
  std::string text;
  for (const std::string& p : problems) text += p + "\n";
  EXPECT_EQ(problems.size(), 6u) << text;
  EXPECT_NE(
      text.find(
          "prompt 1 of 10 tokens and --max-new-tokens 60 need 70 positions, but the model has learned 64: "
          "--max-new-tokens can be at most 54"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("prompt 2 has no tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("prompt 3: token 97 (number 2) is outside of the model's vocabulary of 97"),
            std::string::npos)
      << text;
  Fixture f(c);
  const std::size_t before = f.arena->allocations();
  EXPECT_THROW(f.generator.generate(request), ConfigError);
  EXPECT_EQ(f.arena->allocations(), before);
}

}  // namespace
}  // namespace weft
