// Layouts that have gone wrong elsewhere: odd sizes, few microbatches, stages of unequal size, shared heads.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <mutex>

#include "core/check.hpp"
#include "layout_run.hpp"

namespace weft::testing {
namespace {

using Schedule = ParallelConfig::Schedule;

void expect_one_rank(LayoutCase layout) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::kF32, 1e-5}, {DType::kF64, 1e-11}}) {
    layout.dtype = dtype;
    std::string what;
    EXPECT_LE(worst_difference(run_layout(layout), reference_of(layout), tolerance, &what), 1.0)
        << layout.name() << ": " << what;
  }
}

// The first problem that holds all the words; a failure where there is none.
void expect_problem(const std::vector<std::string>& problems, const std::vector<std::string>& words) {
  bool found = false;
  for (const std::string& problem : problems) {
    bool all = true;
    for (const std::string& word : words) all = all && problem.find(word) != std::string::npos;
    found = found || all;
  }
  std::string text;
  for (const std::string& problem : problems) text += problem + "\n";
  EXPECT_TRUE(found) << words.front() << " ... is not in:\n" << text;
}

// Two key/value heads on up to eight tensor-parallel ranks.
TEST(LayoutCases, MoreTensorParallelRanksThanKeyValueHeads) {
  for (const int tp : {2, 4, 8}) {
    expect_one_rank({.model = "llama",
                     .tp = tp,
                     .sequence_parallel = tp == 4,
                     .global_batch = 8,
                     .groups = 2,
                     .heads = 8,
                     .hidden = 64,
                     .vocabulary = 97});
  }
}

TEST(LayoutCases, HeadsThatDoNotDivideAreRefused) {
  TrainConfig c;
  c.model.num_layers = 4;
  c.model.hidden_size = 64;
  c.model.num_attention_heads = 8;
  c.model.num_query_groups = 3;
  c.model.vocab_size = 97;
  expect_problem(problems_of(c), {"--num-query-groups 3", "--num-attention-heads 8"});
  c.model.hidden_size = 48;
  c.model.num_attention_heads = 6;
  c.model.num_query_groups = 6;
  c.parallel.tensor_model_parallel_size = 4;
  expect_problem(problems_of(c), {"--num-attention-heads 6", "--tensor-model-parallel-size 4"});
}

// A model without experts takes any sizes in either order of the axes: no grid of experts forbids it.
TEST(LayoutCases, BothOrdersOfTheAxesTakeContextParallelRanks) {
  TrainConfig c;
  c.model.num_layers = 4;
  c.model.hidden_size = 24;
  c.model.num_attention_heads = 12;
  c.model.vocab_size = 41;
  c.parallel.ranks = 12;
  c.parallel.context_parallel_size = 3;
  c.parallel.pipeline_model_parallel_size = 2;
  for (const bool pp_before_dp : {false, true}) {
    c.parallel.use_tp_pp_dp_mapping = pp_before_dp;
    const Mesh mesh(weft::layout_of(c.parallel, c.model).mesh, 11);
    EXPECT_EQ(mesh.group({Axis::kCp}), (std::vector<int>{9, 10, 11}));
    EXPECT_EQ(mesh.group({Axis::kPp}), (pp_before_dp ? std::vector<int>{8, 11} : std::vector<int>{5, 11}));
  }
}

// A bias behind a row-parallel product is added once, not once on each rank, nor a part of it.
TEST(LayoutCases, BiasesOfOneOnTensorParallelRanks) {
  RunHooks hooks;
  hooks.made = [](Engine& engine) {
    for (const auto& param : engine.params().all()) {
      for (const LogicalTensor& part : param->parts()) {
        const bool bias = part.name.ends_with(".bias");
        if (bias) const_cast<LogicalTensor&>(part).init = {Init::Kind::kOnes, 0};  // no const object
      }
    }
  };
  const LayoutCase one{.model = "gpt2", .dtype = DType::kF64};
  const LayoutResult expected = run_layout(one, 3, hooks);
  EXPECT_EQ(expected.weights[0].at("decoder.layers.3.mlp.linear_fc2.bias").at(5), 1);
  for (const int tp : {2, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      LayoutCase layout = one;
      layout.tp = tp;
      layout.sequence_parallel = sequence_parallel;
      std::string what;
      const LayoutResult result = run_layout(layout, 3, hooks);
      EXPECT_LE(worst_difference(result, expected, 1e-11, &what), 1.0) << layout.name() << ": " << what;
      EXPECT_EQ(result.unlike, "");
    }
  }
}

TEST(LayoutCases, NoLayerIsLost) {
  LayoutCase three{.model = "gpt2", .pp = 2, .layers = 3, .stages = "Et|ttL"};
  expect_one_rank(three);
  three.stages = "Ett|tL";
  expect_one_rank(three);
  three.stages.clear();
  EXPECT_THROW(run_layout(three), ConfigError);
  EXPECT_THROW(run_layout({.pp = 4, .schedule = Schedule::kInterleaved, .chunks = 2}), ConfigError);

  const LayoutCase interleaved{.pp = 2, .schedule = Schedule::kInterleaved, .chunks = 2};
  const Layout layout = layout_of(interleaved);
  for (int rank = 0; rank < 2; ++rank) {
    for (int chunk = 0; chunk < 2; ++chunk) {
      const StageRange stage = layout.stages_of(rank)[static_cast<std::size_t>(chunk)];
      EXPECT_EQ(stage.first_layer, 2 * chunk + rank);
      EXPECT_EQ(stage.layers, 1);
    }
  }
}

// Both copies of tied embeddings, on the first and the last stage, and on every data-parallel rank, step by
// step (run_layout looks), over 50 steps in bf16.
TEST(LayoutCases, TiedCopiesDoNotDrift) {
  std::vector<LayoutCase> rows{
      {.model = "gpt2", .pp = 2, .dp = 2, .global_batch = 8, .dtype = DType::kBF16},
      {.model = "gpt2", .pp = 2, .dp = 2, .distributed = true, .global_batch = 8, .dtype = DType::kBF16},
      {.model = "gpt2",
       .pp = 2,
       .dp = 2,
       .schedule = Schedule::kInterleaved,
       .chunks = 2,
       .distributed = true,
       .global_batch = 8,
       .dtype = DType::kBF16}};
  for (const LayoutCase& layout : rows) {
    RunHooks hooks;
    hooks.gradients = false;
    const LayoutResult result = run_layout(layout, 50, hooks);
    EXPECT_EQ(result.unlike, "") << layout.name();
    EXPECT_LT(result.losses.back(), result.losses.front()) << layout.name();
  }
}

TEST(LayoutCases, FewerMicrobatchesThanStages) {
  for (const std::int64_t microbatches : {1, 2, 3, 5}) {
    for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B, Schedule::kZbH1}) {
      expect_one_rank({.model = "gpt2", .pp = 4, .schedule = schedule, .global_batch = microbatches});
    }
    expect_one_rank(
        {.model = "gpt2", .pp = 2, .schedule = Schedule::kZbV, .chunks = 2, .global_batch = microbatches});
  }
  for (const std::int64_t microbatches : {1, 2, 3, 4}) {
    const LayoutCase layout{.model = "gpt2",
                            .pp = 2,
                            .schedule = Schedule::kInterleaved,
                            .chunks = 2,
                            .global_batch = microbatches};
    if (microbatches % 2 == 0) {
      expect_one_rank(layout);
      continue;
    }
    try {
      run_layout(layout);
      ADD_FAILURE() << layout.name() << " runs";
    } catch (const ConfigError& error) {
      expect_problem({error.what()}, {"number of microbatches " + std::to_string(microbatches),
                                      "--pipeline-model-parallel-size 2"});
    }
  }
}

TEST(LayoutCases, EvaluationHasItsOwnNumberOfMicrobatches) {
  const auto evaluated = [](const LayoutCase& layout, std::int64_t microbatches) {
    std::atomic<double> sum = 0;
    RunHooks hooks;
    hooks.stepped = [&](Engine& engine, int) {
      const MicrobatchSource source = [&](std::int64_t index, Batch& out) {
        out = Batch{};
        fill_row(700 + index, layout, out);
      };
      const Engine::LossSum loss = engine.evaluate(microbatches, source);
      EXPECT_EQ(loss.tokens, 12 * microbatches);  // of all of them
      sum = loss.sum;
    };
    run_layout(layout, 1, hooks);
    return sum.load();
  };
  const std::vector<LayoutCase> rows{
      {.model = "gpt2", .pp = 4, .dtype = DType::kF64},
      {.model = "gpt2", .pp = 2, .schedule = Schedule::kInterleaved, .chunks = 2, .dtype = DType::kF64},
      {.model = "gpt2", .pp = 2, .schedule = Schedule::kZbV, .chunks = 2, .dtype = DType::kF64},
      {.model = "gpt2", .tp = 2, .pp = 2, .cp = 3, .sequence_parallel = true, .dtype = DType::kF64}};
  for (const std::int64_t microbatches : {1, 3, 7}) {
    const double expected = evaluated({.model = "gpt2", .dtype = DType::kF64}, microbatches);
    EXPECT_GT(expected, 0);
    for (const LayoutCase& layout : rows) {
      EXPECT_NEAR(evaluated(layout, microbatches), expected, 1e-10 * expected) << layout.name();
    }
  }
}

// Odd numbers of data-parallel ranks, and sizes that nothing divides.
TEST(LayoutCases, ShardsOfOddNumbersOfRanks) {
  for (const int dp : {3, 5, 7}) {
    const LayoutCase layout{.model = "gpt2",
                            .dp = dp,
                            .distributed = true,
                            .global_batch = 105,
                            .bucket = 333,
                            .layers = 3,
                            .groups = 5,
                            .heads = 5,
                            .hidden = 20,
                            .vocabulary = 101};
    std::mutex mutex;
    std::map<std::string, std::vector<int>> owners;  // of each element
    std::int64_t owned = 0, padded = 0;
    RunHooks hooks;
    hooks.made = [&](Engine& engine) {
      const std::lock_guard lock(mutex);
      owned += engine.buffer().owned_elems();
      padded = engine.buffer().elems();
      for (const ParamBuffer::Slot& slot : engine.buffer().slots()) {
        owners[slot.param->name()].resize(static_cast<std::size_t>(slot.elems));
      }
      for (const ParamBuffer::Piece& piece : engine.buffer().pieces()) {
        for (std::int64_t i = 0; i < piece.elems; ++i) {
          ++owners[piece.param->name()].at(static_cast<std::size_t>(piece.in_param + i));
        }
      }
    };
    std::string what;
    EXPECT_LE(worst_difference(run_layout(layout, 3, hooks), reference_of(layout), 1e-5, &what), 1.0)
        << layout.name() << ": " << what;
    EXPECT_EQ(owned, padded) << dp;
    for (const auto& [name, counts] : owners) {
      EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name << ", dp " << dp;
    }
  }
}

// Frozen layers, embeddings, norms and single linears, beside positions that no token reaches, in buckets
// smaller than a parameter: nothing hangs, the frozen keep their bits and lie where no gradient, bucket,
// moment or norm meets them, and all else is what one rank computes.
TEST(LayoutCases, FrozenParameters) {
  const std::vector<std::string> layer{"decoder.layers.1.*"};
  const std::vector<std::string> parts{"embedding.*", "*.mlp.*", "*layernorm.weight", "*.linear_proj.bias"};
  const std::vector<std::string> stage{"embedding.*", "decoder.layers.0.*", "decoder.layers.1.*"};
  std::vector<LayoutCase> rows{
      {.model = "gpt2", .dp = 2, .freeze = layer},
      {.model = "gpt2", .dp = 2, .freeze = parts},
      {.model = "gpt2", .dp = 2, .overlap = false, .freeze = layer},
      {.model = "gpt2", .dp = 2, .distributed = true, .freeze = layer},
      {.model = "llama", .dp = 3, .distributed = true, .accumulation = 2, .freeze = parts},
      {.model = "gpt2", .tp = 2, .dp = 2, .distributed = true, .freeze = parts},
      {.model = "llama", .tp = 4, .sequence_parallel = true, .freeze = parts},
      {.model = "llama",
       .tp = 2,
       .dp = 2,
       .sequence_parallel = true,

       .tensor_parallel_chunks = 2,
       .freeze = layer},
      {.model = "gpt2", .tp = 2, .sequence_parallel = true, .tensor_parallel_chunks = 3, .freeze = parts},
      {.model = "gpt2", .pp = 2, .dp = 2, .freeze = layer},
      {.model = "gpt2", .pp = 2, .dp = 2, .schedule = Schedule::kZbH1, .distributed = true, .freeze = parts},
      {.model = "gpt2", .pp = 2, .schedule = Schedule::kZbV, .chunks = 2, .freeze = layer},
      {.model = "llama", .pp = 2, .schedule = Schedule::kInterleaved, .chunks = 2, .freeze = parts},
      {.model = "gpt2", .dp = 2, .cp = 2, .distributed = true, .freeze = parts},
      {.model = "gpt2", .cp = 4, .freeze = layer},  // filled up with tokens at positions 12 to 15
      {.model = "llama", .tp = 2, .cp = 2, .sequence_parallel = true, .freeze = layer},
      // A stage with nothing to train.
      {.model = "llama", .pp = 2, .dp = 2, .freeze = stage},
      {.model = "gpt2",
       .tp = 2,
       .pp = 2,
       .dp = 2,
       .schedule = Schedule::kZbH1,
       .distributed = true,
       .freeze = stage},
      {.model = "llama",
       .dp = 2,
       .recompute = {RecomputeSpec::Kind::kSelective, 0, true, false, true},
       .freeze = layer},
      {.model = "gpt2", .pp = 2, .recompute = {RecomputeSpec::Kind::kUniform, 2}, .freeze = parts}};
  const std::vector<std::string> ends{"embedding.*", "output_layer.*", "*.mlp.*", "*layernorm.bias"};
  for (std::size_t i = 0, given = rows.size(); i < given; ++i) {
    rows.push_back(rows[i]);
    rows.back().fused = true;
  }
  rows.push_back({.model = "llama", .pp = 2, .dp = 2, .ragged = true, .fused = true, .freeze = ends});
  rows.push_back({.model = "llama",
                  .dp = 3,
                  .distributed = true,
                  .tied = true,
                  .tied_given = true,
                  .fused = true,
                  .freeze = ends});
  rows.push_back({.model = "llama",
                  .recompute = {RecomputeSpec::Kind::kSelective, 0, false, true, true},
                  .fused = true,
                  .freeze = {"*.linear_fc1.weight", "*.linear_gate.weight", "*.linear_up.weight"}});
  for (LayoutCase& layout : rows) {
    layout.bucket = 200;
    if (layout.model == "gpt2") layout.unused_positions = 5;
    ModelSpec spec;
    spec.freeze = layout.freeze;
    RunHooks hooks;
    hooks.made = [&](Engine& engine) {
      const ParamBuffer& buffer = engine.buffer();
      std::int64_t trained = 0, frozen = 0;
      for (const auto& param : engine.params().all()) {
        const bool is = is_frozen(spec, param->parts().front().name);
        EXPECT_EQ(param->main_grad().defined(), !is) << param->name();
        if (param->owner() == nullptr) (is ? frozen : trained) += param->local_shape().elems();
      }
      const auto count = [&](const auto& list, bool trains) {
        std::int64_t sum = 0;
        for (const auto& entry : list) {
          EXPECT_EQ(entry.param->trains(), trains) << entry.param->name();
          sum += entry.elems;
        }
        return sum;
      };
      EXPECT_EQ(count(buffer.slots(), true), trained);
      EXPECT_EQ(count(buffer.frozen(), false), frozen);
      EXPECT_LE(count(buffer.pieces(), true), trained);
      // Past the buckets, and nothing but weights.
      for (const ParamBuffer::Slot& slot : buffer.frozen()) EXPECT_GE(slot.offset, buffer.elems());
      EXPECT_EQ(buffer.weights().elems() > buffer.elems(), frozen > 0);
      EXPECT_GE(buffer.gradients().elems(), buffer.elems());
      EXPECT_EQ(engine.optimizer()->master().elems(), buffer.owned_elems());
      for (const Optimizer::State& state : engine.optimizer()->state()) {
        EXPECT_EQ(state.flat.elems(), buffer.owned_elems());
      }
    };
    const LayoutResult result = run_layout(layout, 3, hooks);
    std::string what;
    EXPECT_LE(worst_difference(result, reference_of(layout), 1e-5, &what), 1.0)
        << layout.name() << ": " << what;
    LayoutCase unfrozen = one_rank_of(layout);
    unfrozen.freeze.clear();
    const LayoutResult& all = reference_of(unfrozen);
    EXPECT_EQ(result.weights[0], all.weights[0]) << layout.name();
    std::size_t frozen = 0;
    double squares = 0;
    for (const auto& [name, start] : result.weights[0]) {
      const bool is = is_frozen(spec, name);
      frozen += is ? 1 : 0;
      EXPECT_EQ(result.gradients.contains(name), !is) << layout.name() << ": " << name;
      EXPECT_EQ(result.weights.back().at(name) == start, is) << layout.name() << ": " << name;
      if (is) continue;
      for (const double g : result.gradients.at(name)) squares += g * g;
    }
    EXPECT_GT(frozen, 0u) << layout.name();
    // The norm of the first step is that of the gradients of what is trained. (Dropout masks are the step's.)
    if (layout.model == "llama") {
      EXPECT_NEAR(result.norms[0], std::sqrt(squares), 1e-5 * std::sqrt(squares)) << layout.name();
    }
    EXPECT_LT(result.norms[0], all.norms[0]) << layout.name();
    // Positions from 12 on are in no sequence: their gradient is 0, not nearly.
    const std::string positions = "embedding.position_embeddings.weight";
    if (layout.unused_positions == 0 || is_frozen(spec, positions)) continue;
    const std::vector<double>& g = result.gradients.at(positions);
    const auto width = static_cast<std::size_t>(layout.hidden);
    for (std::size_t i = 0; i < g.size(); ++i) {
      EXPECT_EQ(i / width >= 12 && g[i] != 0, false) << layout.name() << " at " << i;
    }
  }
}

}  // namespace
}  // namespace weft::testing
