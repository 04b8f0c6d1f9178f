// Training with sequences that are cut over context-parallel ranks: what has gone wrong elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "layout_run.hpp"

namespace weft::testing {
namespace {

void expect_one_rank(LayoutCase layout, int steps = 2) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::kF32, 1e-5}, {DType::kF64, 1e-11}}) {
    layout.dtype = dtype;
    std::string what;
    EXPECT_LE(worst_difference(run_layout(layout, steps), reference_of(layout, steps), tolerance, &what), 1.0)
        << layout.name() << ": " << what;
  }
}

// Of the projections that attention's own gradients pass through, layer by layer.
Gradients projections_of(const Gradients& all) {
  Gradients some;
  for (const auto& [name, values] : all) {
    for (const char* projection : {"linear_q.", "linear_k.", "linear_v."}) {
      if (name.find(projection) != std::string::npos) some[name] = values;
    }
  }
  return some;
}

// The backward pass of attention over a cut sequence: dq, dk and dv of every layer, also where scores are so
// large that blocks differ by many orders of magnitude.
TEST(ContextCases, GradientsOfProjections) {
  for (const double factor : {1.0, 100.0}) {
    RunHooks hooks;
    hooks.made = [&](Engine& engine) {
      for (const auto& param : engine.params().all()) {
        for (const LogicalTensor& part : param->parts()) {
          const bool scores = part.name.find("linear_q.weight") != std::string::npos ||
                              part.name.find("linear_k.weight") != std::string::npos;
          if (scores) const_cast<LogicalTensor&>(part).init.std *= factor;  // no const object
        }
      }
    };
    // Scores of some hundreds have errors a hundred times larger; exp of them is beyond fp32.
    const double more = factor > 1 ? 100 : 1;
    for (const auto& [dtype, least] : {std::pair{DType::kF32, 1e-5}, {DType::kF64, 1e-12}}) {
      const double tolerance = more * least;
      const LayoutCase one{.model = "llama",
                           .global_batch = 2,
                           .dtype = dtype,
                           .layers = 2,
                           .groups = 2,
                           .heads = 4,
                           .hidden = 32,
                           .sequence = 32};
      const LayoutResult expected = run_layout(one, 0, hooks);
      const Gradients gradients = projections_of(expected.gradients);
      ASSERT_EQ(gradients.size(), 6u);
      for (const auto& [tp, cp] : {std::pair{1, 2}, {1, 4}, {1, 8}, {2, 2}}) {
        LayoutCase cut = one;
        cut.tp = tp;
        cut.cp = cp;
        for (const LayoutCase& layout : with_every_cp_method(cut)) {
          const LayoutResult result = run_layout(layout, 0, hooks);
          std::string name;
          EXPECT_LE(gradient_difference(projections_of(result.gradients), gradients, &name), tolerance)
              << layout.name() << " x" << factor << ": " << name;
          EXPECT_NEAR(result.first.sum, expected.first.sum, tolerance * expected.first.sum) << layout.name();
        }
      }
    }
  }
}

// What a length lacks to be cut evenly is filled up and counts nowhere.
TEST(ContextCases, LengthsThatDoNotDivide) {
  for (const char* model : {"gpt2", "llama"}) {
    for (const LayoutCase& cut : {LayoutCase{.tp = 4, .cp = 2, .sequence_parallel = true},
                                  {.tp = 4, .cp = 2, .sequence_parallel = true, .sequence = 16},
                                  {.tp = 3, .cp = 2, .sequence_parallel = true, .sequence = 13},
                                  {.cp = 4, .sequence = 30},
                                  {.cp = 3, .sequence = 7, .window = 3},
                                  {.cp = 8, .sequence = 8},
                                  // Ranks of which all rows are filled up.
                                  {.cp = 4, .sequence = 3},
                                  {.tp = 2, .pp = 2, .cp = 3, .sequence_parallel = true, .sequence = 5}}) {
      for (LayoutCase layout : with_every_cp_method(cut)) {
        layout.model = model;
        layout.layers = 2;
        layout.global_batch = 3;
        expect_one_rank(layout);
      }
    }
  }
}

// 2 targets on one context-parallel rank and 9 on the other: the mean is over the tokens of both.
TEST(ContextCases, TargetsOnUnequalRanks) {
  using enum ParallelConfig::SequenceOrder;
  const LayoutCase base{.model = "gpt2", .cp = 2, .global_batch = 4, .layers = 2, .sequence = 20};
  for (const auto order : {kZigzag, kContiguous}) {
    const std::vector<std::int64_t> few = order == kZigzag ? std::vector<std::int64_t>{2, 17}
                                                           : std::vector<std::int64_t>{3, 8},
                                    many =
                                        order == kZigzag
                                            ? std::vector<std::int64_t>{5, 6, 7, 8, 9, 10, 11, 12, 14}
                                            : std::vector<std::int64_t>{10, 11, 12, 13, 14, 15, 17, 18, 19};
    LayoutCase cut = base;
    cut.targets = few;
    cut.targets.insert(cut.targets.end(), many.begin(), many.end());
    // A mean of the two ranks' means would be seen.
    const auto gradients_of = [&](const std::vector<std::int64_t>& targets) {
      LayoutCase one = cut;
      one.targets = targets;
      return reference_of(one, 2).gradients;
    };
    Gradients wrong = gradients_of(few);
    for (auto& [name, values] : wrong) {
      const std::vector<double> other = gradients_of(many).at(name);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = (values[i] + other[i]) / 2;
    }
    std::string name;
    EXPECT_GT(gradient_difference(wrong, gradients_of(cut.targets), &name), 0.1);
    for (const bool per_token : {true, false}) {
      cut.per_token_loss = per_token;
      for (const int dp : {1, 2}) {
        cut.dp = dp;
        cut.distributed = dp == 2;
        for (LayoutCase layout : with_every_cp_method(cut)) {
          if (layout.order != order) continue;
          expect_one_rank(layout);
          layout.targets = few;  // and one rank has none
          expect_one_rank(layout);
        }
      }
    }
  }
}

// Also samples without any, in both forms of the mean.
TEST(ContextCases, MicrobatchesWithoutTargets) {
  for (const bool per_token : {true, false}) {
    for (const LayoutCase& cut : {LayoutCase{.model = "gpt2", .dp = 2, .cp = 2},
                                  {.model = "llama", .tp = 2, .cp = 3, .sequence_parallel = true},
                                  {.model = "gpt2", .pp = 2, .cp = 2, .micro_batch = 2}}) {
      for (LayoutCase layout : with_every_cp_method(cut)) {
        layout.ragged = true;
        layout.layers = 2;
        layout.per_token_loss = per_token;
        expect_one_rank(layout);
      }
    }
  }
  // A step whose only microbatch has none.
  LayoutCase nothing{.model = "gpt2", .cp = 2, .global_batch = 1, .layers = 2, .dropout = false};
  RunHooks hooks;
  hooks.fill = [](std::int64_t id, const LayoutCase& layout, Batch& out) {
    fill_row(id, layout, out);
    std::fill(out.labels.begin(), out.labels.end(), kIgnoredLabel);
    out.target_tokens = 0;
  };
  for (const bool per_token : {true, false}) {
    nothing.per_token_loss = per_token;
    const LayoutResult result = run_layout(nothing, 2, hooks);
    EXPECT_EQ(result.losses, (std::vector<double>{0, 0}));
    EXPECT_EQ(result.norms, (std::vector<double>{0, 0}));
  }
}

// Several sequences in a microbatch, other methods in each layer, windows, and what is computed again.
TEST(ContextCases, EqualOneRank) {
  using Kind = RecomputeSpec::Kind;
  using Schedule = ParallelConfig::Schedule;
  for (const LayoutCase& cut :
       {LayoutCase{.model = "gpt2", .dp = 2, .cp = 2, .micro_batch = 3},
        {.model = "llama", .tp = 2, .cp = 3, .sequence_parallel = true, .window = 4, .micro_batch = 2},
        {.model = "llama", .tp = 2, .cp = 2, .groups = 1, .documents = true, .micro_batch = 2},
        {.model = "gpt2",
        .pp = 2,
        .cp = 2,
        .schedule = Schedule::kZbV,
        .chunks = 2,
        .recompute = {.kind = Kind::kUniform, .layers = 1},
        .documents = true},
        {.model = "gpt2", .tp = 2, .cp = 2, .sequence_parallel = true, .documents = true, .micro_batch = 2},
        {.model = "gpt2", .pp = 2, .dp = 2, .cp = 2, .distributed = true},
        {.model = "gpt2", .cp = 4, .recompute = {Kind::kSelective, 0, true, false, true}, .window = 5}}) {
    for (const LayoutCase& layout : with_every_cp_method(cut)) expect_one_rank(layout);
  }
  expect_one_rank({.model = "gpt2",
                   .pp = 2,
                   .cp = 4,
                   .recompute = {Kind::kSelective, 0, true, true, true},
                   .cp_methods = {"a2a", "all_gather", "a2a+p2p", "p2p"},
                   .head_exchange = 2,
                   .documents = true});
  // Groups of one rank, and one group of all.
  for (const int neighbours : {1, 4}) {
    expect_one_rank({.model = "gpt2", .cp = 4, .cp_methods = {"a2a+p2p"}, .head_exchange = neighbours});
  }
}

// What a microbatch keeps for its backward pass is a cp-th on each rank.
TEST(ContextCases, ActivationsAreShared) {
  const auto most_of = [](const LayoutCase& layout) {
    std::mutex mutex;
    std::size_t most = 0;
    RunHooks hooks;
    hooks.gradients = false;
    hooks.stepped = [&](Engine& engine, int) {
      const std::lock_guard lock(mutex);
      most = std::max(most, engine.chunk_activation_bytes().front());
    };
    run_layout(layout, 1, hooks);
    return static_cast<double>(most);
  };
  const LayoutCase one{.model = "llama",
                       .global_batch = 1,
                       .layers = 2,
                       .groups = 4,
                       .heads = 4,
                       .hidden = 64,
                       .sequence = 256};
  const double whole = most_of(one);
  for (const int cp : {2, 4}) {
    LayoutCase cut = one;
    cut.cp = cp;
    for (const LayoutCase& layout : with_every_cp_method(cut)) {
      // Where heads are exchanged the result of attention is kept in both orders.
      const bool twice = layout.cp_methods.front().starts_with("a2a");
      const auto result = static_cast<double>(4 * one.layers * one.sequence * one.hidden);
      const double expected = whole + (twice ? result : 0.0);
      EXPECT_NEAR(most_of(layout) * cp, expected, 0.02 * expected) << layout.name();
    }
  }
}

}  // namespace
}  // namespace weft::testing
