// Experts on any layout: the same losses, norms, gradients, weights and loads as on one rank, with every loss
// that balances them, in fp64.
#include <gtest/gtest.h>

#include <numeric>

#include "core/check.hpp"
#include "layout_run.hpp"

namespace weft::testing {
namespace {

using Schedule = ParallelConfig::Schedule;

MoeConfig softmax_experts() {
  return {.num_experts = 4, .ffn_hidden_size = 12, .topk = 2, .aux_loss_coeff = 0.05, .z_loss_coeff = 0.01};
}
MoeConfig sigmoid_experts() {
  return {.num_experts = 8,
          .layer_freq = "[0]*1+[1]*3",
          .ffn_hidden_size = 8,
          .topk = 2,
          .score_function = RouterScoreFunction::kSigmoid,
          .scaling_factor = 1.5,
          .num_groups = 4,
          .group_topk = 2,
          .expert_bias = true,
          .bias_update_rate = 0.01,
          .load_balancing = LoadBalancing::kSequenceAuxLoss,
          .aux_loss_coeff = 0.05,
          .z_loss_coeff = 0.02,
          .shared_expert_size = 12};
}

LayoutCase with(LayoutCase layout, const MoeConfig& moe) {
  layout.moe = {moe};
  layout.dtype = DType::kF64;
  return layout;
}

std::vector<LayoutCase> layouts() {
  using Kind = RecomputeSpec::Kind;
  return {
      {.dp = 2},
      {.dp = 2, .ep = 2},
      {.dp = 2, .gathers_tokens = true, .ep = 2},
      {.dp = 4, .distributed = true, .accumulation = 2, .ragged = true, .ep = 2},
      {.dp = 4, .ep = 4},
      {.tp = 2},
      {.tp = 2, .gathers_tokens = true},
      {.tp = 2, .etp = 1},
      {.tp = 2, .gathers_tokens = true, .ep = 2, .etp = 1},
      {.tp = 2, .ep = 2, .etp = 1},
      {.tp = 2, .sequence_parallel = true},
      {.tp = 2, .sequence_parallel = true, .ragged = true, .ep = 2, .etp = 1},
      {.tp = 4, .groups = 2, .ep = 2, .etp = 2},                  // 12 positions over 4 ranks
      {.tp = 4, .groups = 2, .ep = 4, .etp = 1, .sequence = 10},  // which do not divide
      {.dp = 2, .etp = 2},
      {.dp = 4, .distributed = true, .ep = 2, .etp = 2},
      {.tp = 2, .dp = 2, .sequence_parallel = true, .distributed = true, .ep = 2, .etp = 2},
      {.pp = 2},
      {.pp = 4, .dp = 2, .schedule = Schedule::kZbH1, .ep = 2},
      {.pp = 2, .dp = 2, .schedule = Schedule::kInterleaved, .chunks = 2, .distributed = true, .ep = 2},
      {.pp = 2, .schedule = Schedule::kZbV, .chunks = 2},
      {.cp = 2},
      {.cp = 2, .ep = 2},
      {.cp = 3, .sequence = 11},  // filled up
      {.tp = 2, .cp = 2, .sequence_parallel = true, .ep = 4, .etp = 1},
      {.tp = 2, .dp = 2, .cp = 2, .gathers_tokens = true, .ep = 2},
      {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed = true, .accumulation = 2, .ep = 2},
      {.dp = 2, .accumulation = 4, .ep = 2},
      {.dp = 2, .ep = 2, .micro_batch = 3},
      {.dp = 2, .ragged = true, .ep = 2, .micro_batch = 2, .per_token_loss = false},
      {.tp = 2, .ep = 2, .etp = 1, .per_token_loss = false},
      {.dp = 2, .recompute = {.kind = Kind::kUniform, .layers = 2}, .ep = 2},
      {.tp = 2,
       .sequence_parallel = true,
       .recompute = {Kind::kSelective, 0, true, true, true},
       .ep = 2,
       .etp = 1}};
}

std::string loads_differ(const LayoutResult& a, const LayoutResult& b) {
  if (a.experts.size() != b.experts.size()) return "steps";
  for (std::size_t step = 0; step < a.experts.size(); ++step) {
    if (a.experts[step].size() != b.experts[step].size()) return "layers";
    for (std::size_t i = 0; i < a.experts[step].size(); ++i) {
      const ExpertLoad &x = a.experts[step][i], &y = b.experts[step][i];
      if (x.layer != y.layer || x.chosen != y.chosen || x.kept != y.kept) {
        return fmt::format("loads of layer {} in step {}", x.layer, step);
      }
      const auto near = [](double p, double q) {
        return std::abs(p - q) <= 1e-11 * std::max(std::abs(q), 1.0);
      };
      if (!near(x.aux_loss, y.aux_loss)) return fmt::format("aux loss {} and {}", x.aux_loss, y.aux_loss);
      if (!near(x.z_loss, y.z_loss)) return fmt::format("z-loss {} and {}", x.z_loss, y.z_loss);
    }
  }
  return {};
}

void expect_one_rank(const LayoutCase& layout) {
  const LayoutResult result = run_layout(layout);
  const LayoutResult& one = reference_of(layout);
  std::string what;
  EXPECT_LE(worst_difference(result, one, 1e-11, &what), 1.0) << layout.name() << ": " << what;
  EXPECT_EQ(result.unlike, "") << layout.name();
  EXPECT_EQ(loads_differ(result, one), "") << layout.name();
  ASSERT_EQ(one.experts.size(), 3u);
}

TEST(ExpertLayouts, SoftmaxRoutersEqualOneRank) {
  for (LayoutCase layout : layouts()) {
    expect_one_rank(with(layout, softmax_experts()));
  }
}

TEST(ExpertLayouts, SigmoidRoutersWithASharedExpertEqualOneRank) {
  for (LayoutCase layout : layouts()) {
    expect_one_rank(with(layout, sigmoid_experts()));
  }
}

TEST(ExpertLayouts, TokensThatExpertsDropAreTheSameOnes) {
  for (const auto policy : {TokenDropPolicy::kProbabilities, TokenDropPolicy::kPosition}) {
    for (const bool padded : {false, true}) {
      for (LayoutCase layout : layouts()) {
        if (layout.pp > 1 || layout.accumulation > 1) continue;
        layout = with(layout, softmax_experts());
        // A sequence that begins with the same token twice has two equal rows: which one is dropped would
        // hang on the last bit.
        layout.vocabulary = 997;
        layout.moe.front().expert_capacity_factor = 0.7;
        layout.moe.front().token_drop_policy = policy;
        layout.moe.front().pad_to_capacity = padded;
        expect_one_rank(layout);
        const ExpertLoad& load = reference_of(layout).experts[0][0];
        EXPECT_LT(std::accumulate(load.kept.begin(), load.kept.end(), 0.0),
                  std::accumulate(load.chosen.begin(), load.chosen.end(), 0.0));
      }
    }
  }
}

// Rows that only fill a batch up go to no expert, weigh in no loss and take no one's place.
TEST(ExpertLayouts, FillersAreNobody) {
  const LayoutCase layout = with({.dp = 4, .ep = 4}, softmax_experts());
  RunHooks hooks;
  hooks.fill = [](std::int64_t id, const LayoutCase& of, Batch& out) {
    fill_row(id, of, out);
    if (id % 12 < 10) return;
    out.sample_ids.back() = kNoSample;
    out.target_tokens -= of.sequence;
    std::fill(out.labels.end() - of.sequence, out.labels.end(), kIgnoredLabel);
  };
  const LayoutResult result = run_layout(layout, 1, hooks);
  const ExpertLoad& load = result.experts[0][0];
  EXPECT_EQ(std::accumulate(load.chosen.begin(), load.chosen.end(), 0.0), 10.0 * 12 * 2);
  const LayoutResult one = run_layout(one_rank_of(layout), 1, hooks);
  std::string what;
  EXPECT_LE(worst_difference(result, one, 1e-11, &what), 1.0) << what;
  EXPECT_EQ(loads_differ(result, one), "");
}

// A router whose weights send every token to one expert, and another that nothing reaches.
TEST(ExpertLayouts, AllTokensToOneExpert) {
  for (LayoutCase layout : {LayoutCase{.dp = 2, .ep = 2}, LayoutCase{.dp = 4, .ep = 4},
                            LayoutCase{.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1},
                            LayoutCase{.dp = 2, .gathers_tokens = true, .ep = 2}}) {
    layout = with(layout, softmax_experts());
    layout.moe.front().topk = 1;
    layout.moe.front().aux_loss_coeff = layout.moe.front().z_loss_coeff = 0;
    RunHooks hooks;
    // Equal logits: ties go to the expert of the smallest number.
    hooks.made = [](Engine& engine) {
      for (const auto& param : engine.params().all()) {
        if (param->name().ends_with("router.weight")) {
          const_cast<LogicalTensor&>(param->parts().front()).init = {};
        }
      }
    };
    const LayoutResult result = run_layout(layout, 1, hooks), one = run_layout(one_rank_of(layout), 1, hooks);
    std::string what;
    EXPECT_LE(worst_difference(result, one, 1e-11, &what), 1.0) << layout.name() << ": " << what;
    const ExpertLoad& load = result.experts[0][0];
    EXPECT_EQ(load.chosen, (std::vector<double>{144, 0, 0, 0})) << layout.name();
    const ExpertMetrics metrics = expert_metrics(result.experts[0]).value();
    EXPECT_EQ(metrics.layers[0].dead, 3);
    EXPECT_EQ(metrics.layers[0].max, 144);
    EXPECT_EQ(metrics.drop_rate, 0);
  }
}

TEST(ExpertLayouts, UnsuitableNumbersAreNamed) {
  const LayoutCase layout = with({.dp = 3, .ep = 3}, softmax_experts());
  try {
    run_layout(layout, 1);
    FAIL() << "4 experts on 3 ranks";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--num-experts 4"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--expert-model-parallel-size 3"), std::string::npos);
  }
}

}  // namespace
}  // namespace weft::testing
