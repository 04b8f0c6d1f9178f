// The plan against runs, to the byte: what every rank's arena comes to hold and what every rank sends.
#include "train/plan.hpp"

#include <gtest/gtest.h>

#include <ostream>

#include "comm/local/launcher.hpp"
#include "core/gpu.hpp"
#include "layout_run.hpp"
#include "pipeline/simulate.hpp"
#include "support/rank.hpp"
#include "train/context_parallel.hpp"
#include "train/freeze.hpp"
#include "train/plan_report.hpp"

namespace weft {
namespace {

using testing::LayoutCase;
using Schedule = ParallelConfig::Schedule;
using Kind = RecomputeSpec::Kind;

constexpr std::int64_t kSequence = 16, kVocabulary = 83;

struct PlanCase {
  LayoutCase layout;
  std::int64_t microbatches = 4;
  std::string name() const { return layout.name() + " microbatches" + std::to_string(microbatches); }
};

void PrintTo(const PlanCase& c, std::ostream* out) {
  *out << c.name();
}

ModelConfig model_of(const LayoutCase& layout) {
  ModelConfig c;
  c.num_layers = layout.layers;
  c.hidden_size = 48;
  c.num_attention_heads = 12;
  c.ffn_hidden_size = 96;
  c.vocab_size = kVocabulary;
  c.max_position_embeddings = kSequence;
  c.make_vocab_size_divisible_by = 4;
  c.sliding_window = layout.window;
  c.qk_layernorm = layout.head_norms;
  if (!layout.moe.empty()) c.moe = layout.moe.front();
  if (layout.gathers_tokens) c.moe.dispatcher = TokenDispatcher::kAllGather;
  if (layout.model == "llama") {
    c.num_query_groups = layout.groups;
    if (layout.latent) {
      c.num_query_groups = 0;
      c.latent = testing::small_latent();
    }
    c.position_embedding = PositionEmbedding::kRope;
    c.normalization = Normalization::kRmsNorm;
    c.gated = true;
    c.activation = ops::Activation::kSilu;
    c.add_bias_linear = false;
    c.tied = false;
    c.hidden_dropout = c.attention_dropout = 0;
  }
  return resolved(c);
}

EngineOptions options_of(const LayoutCase& layout) {
  const ParallelConfig parallel = config_of(layout).parallel;
  EngineOptions options;
  options.model = model_of(layout);
  options.dtype = layout.dtype;
  options.micro_batch = 2;
  options.sequence_length = kSequence;
  options.layout = layout_of(parallel, options.model);
  options.sequence_parallel = layout.sequence_parallel;
  options.sequence_order = sequence_order(parallel);
  options.context_methods = context_methods(parallel);
  options.tensor_parallel_chunks = layout.tensor_parallel_chunks;
  options.recompute = layout.recompute;
  options.distributed_optimizer = layout.distributed;
  options.overlap_grad_reduce = options.overlap_param_gather = options.overlap_p2p = layout.overlap;
  options.bucket_elems = layout.bucket > 0 ? layout.bucket : 5000;
  options.freeze = layout.freeze;
  return options;
}

// Random tokens; targets too.
void fill(std::int64_t seed, Batch& out) {
  out = Batch{};
  out.rows = 2;
  out.sequence_length = kSequence;
  for (const double v : testing::random_values(static_cast<std::uint64_t>(seed), 2 * kSequence)) {
    out.tokens.push_back(static_cast<std::int32_t>((v + 1) / 2 * (kVocabulary - 1)));
  }
  out.labels = out.tokens;
  out.sample_ids = {2 * seed, 2 * seed + 1};
  out.target_tokens = 2 * kSequence;
}

// What one rank of a run has come to.
struct Measured {
  std::size_t high_water = 0;
  std::vector<Traffic> steps;
};

// Steps, an evaluation and another step on thread ranks; by rank.
std::vector<Measured> run(const EngineOptions& options, std::int64_t microbatches) {
  std::vector<Measured> all(static_cast<std::size_t>(options.layout.world()));
  run_local_ranks(
      {.ranks = options.layout.world(), .timeout = std::chrono::seconds(60)}, [&](Communicator& world) {
        testing::TestRank rank(std::size_t{1} << 26);
        const Groups groups(world, options.layout);
        Engine engine(rank.lane(), groups, options);
        engine.initialize();
        const MicrobatchSource source = [](std::int64_t i, Batch& out) { fill(i, out); };
        Measured& mine = all[static_cast<std::size_t>(world.rank())];
        for (std::int64_t step = 1; step <= 4; ++step) {
          const Traffic before = bytes_sent(groups);
          engine.train_step({.iteration = step, .microbatches = microbatches, .source = source, .lr = 1e-3});
          Traffic sent = bytes_sent(groups);
          for (auto& [name, bytes] : sent) bytes -= before.at(name);
          mine.steps.push_back(sent);
          if (step == 3) engine.evaluate(2 * microbatches + 3, source);
        }
        engine.flush();
        mine.high_water = rank.lane().arena.high_water();
      });
  return all;
}

class PlanOfLayout : public ::testing::TestWithParam<PlanCase> {};

TEST_P(PlanOfLayout, IsWhatEveryRankNeedsAndSends) {
  const EngineOptions options = options_of(GetParam().layout);
  const std::vector<StepPlan> plans = plan_step(options, GetParam().microbatches, true, 1);
  const std::vector<Measured> measured = run(options, GetParam().microbatches);
  std::vector<std::size_t> most(plans.size());
  for (std::size_t rank = 0; rank < measured.size(); ++rank) {
    const Mesh mesh(options.layout.mesh, static_cast<int>(rank));
    const StepPlan& plan = plans[static_cast<std::size_t>(mesh.coordinate(Axis::kPp))];
    if (mesh.size(Axis::kCp) == 1) {
      EXPECT_EQ(measured[rank].high_water, plan.memory.arena)
          << GetParam().name() << ": " << mesh.describe(static_cast<int>(rank));
    }
    std::size_t& so_far = most[static_cast<std::size_t>(mesh.coordinate(Axis::kPp))];
    so_far = std::max(so_far, measured[rank].high_water);
    Traffic expected = plan.traffic;
    for (const Traffic& step : measured[rank].steps) {
      if (options.distributed_optimizer && mesh.coordinate(Axis::kDp) > 0) {
        // Gradients of parameters that several ranks hold: other data-parallel ranks own other slices.
        for (const char* name : {"tp", "embedding", "kv_replicas"}) expected[name] = step.at(name);
      }
      // Where tokens go is not known before.
      if (options.layout.experts) expected["tokens to experts"] = step.at("tokens to experts");
      EXPECT_EQ(step, expected) << GetParam().name() << ": " << mesh.describe(static_cast<int>(rank));
    }
  }
  // Context-parallel ranks see more or fewer keys.
  for (std::size_t pp = 0; pp < plans.size(); ++pp) EXPECT_EQ(most[pp], plans[pp].memory.arena) << pp;
}

std::vector<PlanCase> cases() {
  const LayoutCase zero1{.model = "llama", .dp = 2, .distributed = true};
  const std::vector<MoeConfig> experts{
      {.num_experts = 4, .ffn_hidden_size = 24, .aux_loss_coeff = 0.01, .shared_expert_size = 24}};
  return {
      {{.model = "gpt2"}, 5},
      {{.model = "llama", .schedule = Schedule::kGpipe}, 5},
      {{.model = "gpt2", .tp = 2, .dp = 2}, 3},
      {{.model = "llama", .tp = 4, .sequence_parallel = true, .dtype = DType::kBF16, .groups = 2}, 3},
      {{.model = "llama", .tp = 2, .sequence_parallel = true, .tensor_parallel_chunks = 3}, 2},
      {zero1, 3},
      {{.model = "gpt2", .dp = 3, .distributed = true, .overlap = false, .dtype = DType::kBF16}, 2},
      {{.model = "llama", .pp = 4, .dtype = DType::kBF16}, 9},
      {{.model = "gpt2", .cp = 3}, 2},
      {{.model = "llama", .tp = 2, .sequence_parallel = true, .latent = true}, 2},
      {{.model = "llama", .cp = 2, .dtype = DType::kBF16, .latent = true}, 2},
      {{.model = "llama", .tp = 2, .dtype = DType::kBF16, .groups = 1, .head_norms = true}, 2},
      {{.model = "llama", .cp = 4}, 2},
      {{.model = "llama",
        .cp = 4,
        .dtype = DType::kBF16,
        .order = ParallelConfig::SequenceOrder::kContiguous},
       2},
      {{.model = "llama", .tp = 2, .cp = 2, .sequence_parallel = true, .cp_methods = {"all_gather"}}, 2},
      {{.model = "gpt2",
        .dp = 2,
        .cp = 3,
        .distributed = true,
        .cp_methods = {"all_gather"},
        .order = ParallelConfig::SequenceOrder::kContiguous},
       2},
      {{.model = "llama", .pp = 2, .cp = 2, .distributed = true, .cp_methods = {"a2a"}}, 3},
      {{.model = "gpt2", .cp = 4, .cp_methods = {"a2a+p2p"}, .head_exchange = 2}, 2},
      {{.model = "gpt2", .cp = 8}, 2},
      {{.model = "llama", .moe = experts}, 3},
      {{.model = "llama", .dp = 2, .moe = experts, .ep = 2}, 3},
      {{.model = "llama", .dp = 4, .distributed = true, .dtype = DType::kBF16, .moe = experts, .ep = 4}, 2},
      {{.model = "llama", .tp = 2, .sequence_parallel = true, .moe = experts, .ep = 2, .etp = 1}, 2},
      {{.model = "llama", .tp = 2, .moe = experts, .gathers_tokens = true}, 2},
      {{.model = "llama", .tp = 2, .pp = 2, .dp = 2, .moe = experts, .ep = 2, .etp = 2}, 4},
      {{.model = "llama", .cp = 6, .window = 3}, 2},
      {{.model = "llama", .cp = 6, .order = ParallelConfig::SequenceOrder::kContiguous, .window = 5}, 2},
      {{.model = "gpt2", .cp = 5, .cp_methods = {"all_gather"}}, 2},
      {{.model = "gpt2", .pp = 2, .cp = 4, .cp_methods = {"a2a", "p2p", "all_gather", "p2p"}}, 2},
      {{.model = "gpt2", .pp = 2, .schedule = Schedule::kGpipe}, 17},
      {{.model = "gpt2", .pp = 2, .schedule = Schedule::kInterleaved, .chunks = 2}, 10},
      {{.model = "llama", .pp = 3, .schedule = Schedule::kInterleaved, .chunks = 2, .layers = 6}, 6},
      {{.model = "gpt2",
        .pp = 4,
        .schedule = Schedule::kInterleaved,
        .chunks = 2,
        .layers = 8,
        .recompute = {.kind = Kind::kUniform, .layers = 1}},
       4},
      {{.model = "llama",
        .tp = 2,
        .pp = 3,
        .schedule = Schedule::kInterleaved,
        .chunks = 3,
        .sequence_parallel = true,
        .layers = 9,
        .recompute = {.kind = Kind::kBlock, .layers = 1}},
       9},
      // Beyond the fill and several rounds of steady state its peak still grows.
      {{.model = "llama", .pp = 4, .schedule = Schedule::kZbH1}, 40},
      {{.model = "gpt2", .pp = 2, .dp = 2, .schedule = Schedule::kZbV, .chunks = 2}, 7},
      {{.model = "gpt2", .pp = 3, .stages = "Et|ttt|L"}, 5},
      {{.model = "llama", .pp = 2, .recompute = {.kind = Kind::kUniform, .layers = 2}}, 4},
      {{.model = "gpt2", .tp = 2, .recompute = {.kind = Kind::kBlock, .layers = 3}}, 2},
      {{.model = "llama",
        .tp = 2,
        .sequence_parallel = true,
        .dtype = DType::kBF16,
        .recompute = {Kind::kSelective, 0, true, true, true}},
       2},
      {{.model = "gpt2",
        .tp = 2,
        .pp = 2,
        .dp = 2,
        .schedule = Schedule::kZbH1,
        .sequence_parallel = true,
        .distributed = true,
        .dtype = DType::kBF16},
       6},
      {{.model = "gpt2", .dtype = DType::kBF16, .freeze = {"embedding.*", "decoder.layers.0.*"}}, 5},
      {{.model = "gpt2",
        .tp = 2,
        .pp = 2,
        .dp = 2,
        .schedule = Schedule::kZbH1,
        .sequence_parallel = true,
        .distributed = true,
        .dtype = DType::kBF16,
        .freeze = {"embedding.*", "*.mlp.*", "*layernorm.weight"}},
       6},
      // A stage with nothing to train.
      {{.model = "llama", .pp = 2, .dp = 2, .freeze = {"embedding.*", "*.0.*", "*.1.*"}}, 4},
      {{.model = "llama",
        .tp = 2,
        .sequence_parallel = true,
        .tensor_parallel_chunks = 3,
        .recompute = {Kind::kSelective, 0, true, false, true},
        .freeze = {"*.linear_?.weight", "*.linear_fc2.weight"}},
       2},
  };
}

INSTANTIATE_TEST_SUITE_P(Plan, PlanOfLayout, ::testing::ValuesIn(cases()));

// The plan is made for one rank of each stage. On GPUs too, whose operations take memory for lists that
// differ from rank to rank (a build without CUDA knows a CPU's needs only).
TEST(Plan, IsTheSameForEveryRankOfAStage) {
  for (const LayoutCase& layout : {LayoutCase{.model = "llama",
                                  .tp = 2,
                                  .pp = 2,
                                  .dp = 2,
                                  .schedule = Schedule::kInterleaved,
                                  .chunks = 2,
                                  .sequence_parallel = true,
                                  .distributed = true},
                                   LayoutCase{.model = "llama",
                                   .tp = 2,
                                   .pp = 2,
                                   .dp = 3,
                                   .schedule = Schedule::kZbH1,
                                   .sequence_parallel = true,
                                   .distributed = true,
                                   .dtype = DType::kBF16},
                                   LayoutCase{.model = "gpt2", .tp = 2, .dp = 4, .distributed = true}}) {
    EngineOptions options = options_of(layout);
    if (built_with_cuda()) options.device = DeviceKind::kCuda;
    options.fused = true;
    const std::vector<MemoryPlan> plans = plan_training(options, 4, true, 1);
    for (int rank = 0; rank < options.layout.world(); ++rank) {
      const Groups groups = Groups::planned(options.layout, rank);
      const std::unique_ptr<Arena> arena = Arena::meta(options.device);
      Workers workers(1);
      Lane lane{*arena, workers, {}};
      Engine engine(lane, groups, options);
      const MicrobatchSource none;
      for (int step = 0; step < 2; ++step) engine.train_step({.microbatches = 4, .source = none});
      engine.evaluate(4, none);
      engine.flush();
      const Mesh mesh(options.layout.mesh, rank);
      EXPECT_EQ(arena->high_water(), plans[static_cast<std::size_t>(mesh.coordinate(Axis::kPp))].arena)
          << layout.name() << ": " << mesh.describe(rank);
    }
  }
}

// Scoring: logits of each microbatch, gradients or the loss of all. Whole tensors are put together on the
// first ranks; the others need no more.
TEST(Plan, OfAScoringRunIsWhatItsRanksNeed) {
  constexpr std::int64_t kMicrobatches = 9;
  for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
    for (const bool gradients : {false, true}) {
      EngineOptions options = options_of({.model = "gpt2", .tp = 2, .pp = 2, .schedule = schedule});
      options.training = false;
      const std::vector<MemoryPlan> plans = plan_scoring(options, kMicrobatches, gradients, 1);
      std::vector<std::size_t> high_water(4);
      run_local_ranks({.ranks = 4, .timeout = std::chrono::seconds(60)}, [&](Communicator& world) {
        testing::TestRank rank(std::size_t{1} << 26);
        const Groups groups(world, options.layout);
        Engine engine(rank.lane(), groups, options);
        engine.initialize();
        const MicrobatchSource source = [](std::int64_t i, Batch& out) { fill(i, out); };
        Batch batch;
        for (std::int64_t m = 0; m < kMicrobatches; ++m) {
          fill(m, batch);
          engine.logits(batch);
        }
        if (gradients) {
          engine.gradients(kMicrobatches, source);
          engine.for_each_gradient([](const LogicalTensor&, const Tensor&) {});
        } else {
          engine.evaluate(kMicrobatches, source);
        }
        high_water[static_cast<std::size_t>(world.rank())] = rank.lane().arena.high_water();
      });
      for (int rank = 0; rank < 4; ++rank) {
        const std::size_t found = high_water[static_cast<std::size_t>(rank)];
        const std::size_t planned = plans[static_cast<std::size_t>(rank / 2)].arena;
        EXPECT_LE(found, planned) << name_of(schedule) << gradients << rank;
        if (rank % 2 > 0) continue;
        EXPECT_EQ(found, planned) << name_of(schedule) << gradients << rank;
      }
    }
  }
}

// ZeRO stage 1: master weights and moments are cut over the data-parallel ranks, and nothing else is.
TEST(Plan, OptimizerStatesFallWithTheDataParallelRanks) {
  LayoutCase layout{.model = "gpt2", .dtype = DType::kBF16};
  const auto parameters = static_cast<std::size_t>(parameter_count(model_of(layout)));
  for (const int dp : {1, 2, 3, 8, 64, 4096}) {
    layout.dp = dp;
    layout.distributed = false;
    const MemoryPlan whole = plan_training(options_of(layout), 1, false, 1).front();
    layout.distributed = true;
    const MemoryPlan part = plan_training(options_of(layout), 1, false, 1).front();
    EXPECT_EQ(part.optimizer * static_cast<std::size_t>(dp), whole.optimizer) << dp;
    EXPECT_EQ(part.weights, whole.weights) << dp;
    EXPECT_EQ(part.gradients, whole.gradients) << dp;
    EXPECT_LT(part.arena + whole.optimizer - part.optimizer, whole.arena + 4096) << dp;
    // fp32 weight and two moments of each parameter, and padding: buckets end at multiples of 128 and of dp.
    EXPECT_GE(whole.optimizer, 12 * parameters) << dp;
    if (dp > 64) continue;  // 5 % for the padding of a small model
    EXPECT_LE(static_cast<double>(whole.optimizer), 12 * 1.05 * static_cast<double>(parameters)) << dp;
  }
}

// Spread over ranks, experts are held by fewer of them.
TEST(Plan, BytesOfExpertsAreThePlans) {
  for (const auto& [ep, etp] : {std::pair{1, 1}, {2, 1}, {4, 1}, {2, 2}}) {
    for (const bool distributed : {false, true}) {
      TrainConfig config;
      config.model = model_of({.model = "llama"});
      config.model.moe = {.num_experts = 8, .ffn_hidden_size = 96};
      config.data.seq_length = kSequence;
      config.parallel.ranks = 4;
      config.parallel.expert_model_parallel_size = ep;
      config.parallel.expert_tensor_parallel_size = etp;
      config.parallel.use_distributed_optimizer = distributed;
      config = resolved(config);
      const MemoryPlan plan = plan_training(EngineOptions::from(config), 1, false, 1).front();
      const std::int64_t experts = expert_parameter_count(config.model);
      EXPECT_EQ(experts, 4 * 8 * 3 * 48 * 96);
      const auto said =
          static_cast<double>(bytes_of_parameter(config) * (parameter_count(config.model) - experts) +
                              bytes_of_parameter(config, true) * experts);
      const auto planned = static_cast<double>(4 * (plan.weights + plan.gradients + plan.optimizer));
      EXPECT_GE(planned, said) << ep << etp << distributed;
      EXPECT_LE(planned, 1.05 * said) << ep << etp << distributed;
    }
  }
}

// What a run is refused by before it is planned.
TEST(Plan, BytesOfAParameterAreThePlans) {
  for (const bool bf16 : {false, true}) {
    for (const bool distributed : {false, true}) {
      for (const auto& [replicas, cp] : {std::pair{1, 1}, {4, 1}, {4, 2}, {2, 2}}) {
        for (const auto kind : {OptimizerConfig::Kind::kAdam, OptimizerConfig::Kind::kSgd}) {
          TrainConfig config;
          config.model = model_of({.model = "llama"});
          config.data.seq_length = kSequence;
          config.training.bf16 = bf16;
          config.parallel.ranks = replicas;
          config.parallel.context_parallel_size = cp;
          config.parallel.use_distributed_optimizer = distributed;
          config.optimizer.optimizer = kind;
          config = resolved(config);
          const MemoryPlan plan = plan_training(EngineOptions::from(config), 1, false, 1).front();
          const auto planned = static_cast<double>((plan.weights + plan.gradients + plan.optimizer) *
                                                   static_cast<std::size_t>(replicas));
          const double said = static_cast<double>(bytes_of_parameter(config) * parameter_count(config.model));
          EXPECT_GE(planned, said) << bf16 << distributed << replicas << cp;  // padding is not counted
          EXPECT_LE(planned, 1.05 * said) << bf16 << distributed << replicas << cp;

          config.training.freeze = {"embedding.*", "*.mlp.*", "decoder.layers.1.*"};
          const MemoryPlan part = plan_training(EngineOptions::from(config), 1, false, 1).front();
          const std::int64_t frozen = frozen_parameters(config.model, config.training.freeze);
          EXPECT_GT(frozen, parameter_count(config.model) / 2);
          const auto held = static_cast<double>((part.weights + part.gradients + part.optimizer) *
                                                static_cast<std::size_t>(replicas));
          const auto expected =
              static_cast<double>(bytes_of_parameter(config) * (parameter_count(config.model) - frozen) +
                                  bytes_of_frozen_parameter(config) * frozen);
          EXPECT_GE(held, expected) << bf16 << distributed << replicas << cp;
          EXPECT_LE(held, 1.05 * expected) << bf16 << distributed << replicas << cp;
          EXPECT_EQ(part.parameters, plan.parameters);
          EXPECT_LT(part.activations, plan.activations) << "inputs of frozen linears are kept";
        }
      }
    }
  }
}

// Steps of many microbatches are not simulated whole.
TEST(Plan, BubbleIsTheSimulators) {
  const auto check = [](const PipelineShape& shape) {
    EXPECT_NEAR(bubble_of(shape), simulate(make_programs(shape)).bubble(), 1e-12)
        << name_of(shape.schedule) << " " << shape.ranks << " " << shape.chunks << " " << shape.microbatches;
  };
  for (const int ranks : {2, 3, 4, 7}) {
    for (const int microbatches : {1, 2, 5, 8, 21, 64, 101}) {
      check({.schedule = Schedule::kGpipe, .ranks = ranks, .microbatches = microbatches});
      check({.schedule = Schedule::k1F1B, .ranks = ranks, .microbatches = microbatches});
      check({.schedule = Schedule::kZbH1, .ranks = ranks, .microbatches = microbatches});
      check({.schedule = Schedule::kZbV, .ranks = ranks, .chunks = 2, .microbatches = microbatches});
    }
    for (const int rounds : {1, 2, 3, 8, 9, 10, 31}) {
      check(
          {.schedule = Schedule::kInterleaved, .ranks = ranks, .chunks = 3, .microbatches = rounds * ranks});
      check({.schedule = Schedule::kInterleaved,
             .ranks = ranks,
             .chunks = 2,
             .microbatches = rounds * (ranks + 2) + ranks,
             .group = ranks + 2});
    }
  }
  EXPECT_EQ(bubble_of({.ranks = 1, .microbatches = 3}), 0);
  EXPECT_NEAR(bubble_of({.ranks = 16, .microbatches = 64}), 15.0 / 64, 1e-12);  // (P - 1) / M
}

}  // namespace
}  // namespace weft
