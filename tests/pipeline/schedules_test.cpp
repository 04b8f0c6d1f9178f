#include "pipeline/schedules.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/check.hpp"
#include "pipeline/faults.hpp"
#include "pipeline/simulate.hpp"

namespace weft {
namespace {

using enum PipelineSchedule;
using test::faults_of;

constexpr int kRanks = 8, kMicrobatches = 32, kChunks = 4;

std::string said(const PipelineShape& s) {
  return std::string(name_of(s.schedule)) + " P=" + std::to_string(s.ranks) +
         " V=" + std::to_string(s.chunks) + " M=" + std::to_string(s.microbatches) +
         " N=" + std::to_string(s.group) + (s.forward_only ? " forward only" : "");
}

// Every shape up to these sizes that is allowed.
void for_all(const std::function<void(const PipelineShape&)>& test) {
  for (const ScheduleForm& form : pipeline_schedules()) {
    for (int ranks = 1; ranks <= kRanks; ++ranks) {
      for (int chunks = 1; chunks <= kChunks; ++chunks) {
        for (int microbatches = 1; microbatches <= kMicrobatches; ++microbatches) {
          const PipelineShape shape{form.schedule, ranks, chunks, microbatches};
          if (problems_of(shape).empty()) test(shape);
        }
      }
    }
  }
}

int ahead_of_first_backward(const Program& order) {
  const auto first = std::find_if(order.begin(), order.end(),
                                  [](const Action& a) { return a.kind == ActionKind::kBackward; });
  return static_cast<int>(first - order.begin());
}

TEST(Schedules, EveryActionOnceInOrderAndNoDeadlock) {
  int shapes = 0;
  for_all([&](const PipelineShape& given) {
    for (bool forward_only : {false, true}) {
      PipelineShape shape = given;
      shape.forward_only = forward_only;
      const std::vector<Program> programs = make_programs(shape);
      EXPECT_EQ(faults_of(shape, programs), std::vector<std::string>{}) << said(shape);
      for (double message : {0.0, 0.75}) {
        const SimulationResult result =
            simulate(programs, {.message = message, .sends_in_flight = sends_in_flight(shape)});
        EXPECT_EQ(result.faults, std::vector<std::string>{}) << said(shape);
      }
      ++shapes;
    }
  });
  EXPECT_GT(shapes, 2000);
}

TEST(Schedules, OtherGroupSizesOfInterleaved) {
  int shapes = 0;
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (int group = ranks; group <= 8; ++group) {
      for (int microbatches = 1; microbatches <= 20; ++microbatches) {
        const PipelineShape shape{kInterleaved, ranks, 3, microbatches, group};
        if (!problems_of(shape).empty()) continue;
        const std::vector<Program> programs = make_programs(shape);
        EXPECT_EQ(faults_of(shape, programs), std::vector<std::string>{}) << said(shape);
        EXPECT_EQ(simulate(programs, {.sends_in_flight = sends_in_flight(shape)}).faults,
                  std::vector<std::string>{})
            << said(shape);
        ++shapes;
      }
    }
  }
  EXPECT_GT(shapes, 50);
}

TEST(Schedules, EvaluationTakesAnyCount) {
  for (int ranks = 2; ranks <= kRanks; ++ranks) {
    for (int microbatches = 1; microbatches <= 12; ++microbatches) {
      const PipelineShape shape{kInterleaved, ranks, 2, microbatches, 0, true};
      EXPECT_EQ(problems_of(shape), std::vector<std::string>{});
      const std::vector<Program> programs = make_programs(shape);
      EXPECT_EQ(faults_of(shape, programs), std::vector<std::string>{}) << said(shape);
      EXPECT_EQ(simulate(programs, {.sends_in_flight = sends_in_flight(shape)}).faults,
                std::vector<std::string>{})
          << said(shape);
    }
  }
}

TEST(Schedules, WarmUpAndInFlight) {
  for_all([&](const PipelineShape& shape) {
    if (shape.schedule == kGpipe) return;
    const SimulationResult result =
        simulate(make_programs(shape), {.sends_in_flight = sends_in_flight(shape)});
    const int P = shape.ranks, V = shape.chunks, M = shape.microbatches;
    for (int rank = 0; rank < P; ++rank) {
      const RankResult& r = result.ranks[static_cast<std::size_t>(rank)];
      const int forwards = ahead_of_first_backward(compute_order(shape, rank));
      if (shape.schedule == k1F1B || shape.schedule == kZbH1) {
        const int warm_up = std::min(M, P - rank - 1);
        EXPECT_EQ(forwards, std::min(M, warm_up + 1)) << said(shape);
        EXPECT_LE(r.peak_in_flight, warm_up + 1) << said(shape);
      }
      if (shape.schedule == k1F1B) {
        EXPECT_EQ(r.peak_live, std::min(M, P - rank)) << said(shape);
      }
      // Zero bubble: as many as the first rank of 1F1B has, on every rank.
      if (shape.schedule == kZbH1) {
        EXPECT_EQ(r.peak_live, std::min(M, P)) << said(shape);
      }
      if (shape.schedule == kZbV) {
        EXPECT_LE(r.peak_live, 2 * P) << said(shape);
      }
      if (shape.schedule == kInterleaved) {
        const int warm_up = std::min(M * V, 2 * (P - rank - 1) + (V - 1) * P);
        EXPECT_EQ(forwards, std::min(M * V, warm_up + 1)) << said(shape);
        EXPECT_LE(r.peak_live, warm_up + 1) << said(shape);
      }
    }
  });
}

// Idle over busy time, F = B = W, messages that take no time.
TEST(Schedules, PublishedBubbles) {
  for_all([&](const PipelineShape& shape) {
    const int P = shape.ranks, V = shape.chunks, M = shape.microbatches;
    if (M < P || (shape.schedule == kInterleaved && M % P != 0)) return;
    const SimulationResult result =
        simulate(make_programs(shape), {.sends_in_flight = sends_in_flight(shape)});
    switch (shape.schedule) {
      case kGpipe:
      case k1F1B:
        EXPECT_NEAR(result.bubble(), (P - 1.0) / M, 1e-12) << said(shape);
        break;
      case kInterleaved:
        EXPECT_NEAR(result.bubble(), (P - 1.0) / (V * M), 1e-12) << said(shape);
        break;
      case kZbH1:
        EXPECT_NEAR(result.bubble(), (P - 1.0) / (3 * M), 1e-12) << said(shape);
        break;
      case kZbV: {
        // With fewer microbatches the first one is not back up in time.
        const int late = std::max(0, 2 * P - 2 - M);
        EXPECT_NEAR(result.bubble(), (P - 1.0 + late) / (6 * M), 1e-12) << said(shape);
        EXPECT_EQ(result.device_bubble() > 1e-12, M < 2 * P - 1) << said(shape);
        break;
      }
    }
  });
}

TEST(Schedules, GradientsFirstShortenTheBubble) {
  const StageCost cost{.forward = 1, .backward = 1.25, .weight_grad = 0.75};
  for (PipelineSchedule schedule : {kGpipe, k1F1B, kInterleaved}) {
    const int chunks = schedule == kInterleaved ? 2 : 1;
    PipelineShape shape{schedule, 4, chunks, 8};
    EXPECT_NEAR(simulate(make_programs(shape), {.stages = {cost}, .sends_in_flight = sends_in_flight(shape)})
                    .bubble(),
                3.0 / 8 / chunks, 1e-12);
    shape.gradients_first = true;
    const std::vector<Program> programs = make_programs(shape);
    EXPECT_EQ(faults_of(shape, programs), std::vector<std::string>{});
    EXPECT_NEAR(simulate(programs, {.stages = {cost}, .sends_in_flight = sends_in_flight(shape)}).bubble(),
                3.0 / 8 / chunks * 2.25 / 3, 1e-12);
  }
}

TEST(Schedules, StagesOfAChunk) {
  const PipelineShape interleaved{kInterleaved, 2, 2, 2};
  EXPECT_EQ(stage_of(interleaved, 0, 0), 0);
  EXPECT_EQ(stage_of(interleaved, 0, 1), 2);
  EXPECT_EQ(stage_of(interleaved, 1, 0), 1);
  EXPECT_EQ(stage_of(interleaved, 1, 1), 3);
  const PipelineShape v{kZbV, 4, 2, 8};
  EXPECT_EQ(stage_of(v, 0, 1), 7);
  EXPECT_EQ(stage_of(v, 3, 0), 3);
  EXPECT_EQ(stage_of(v, 3, 1), 4);
  for (const PipelineShape& shape : {interleaved, v}) {
    for (int stage = 0; stage < shape.stages(); ++stage) {
      EXPECT_EQ(stage_of(shape, rank_of(shape, stage), chunk_of(shape, stage)), stage);
    }
  }
}

TEST(Schedules, ProgramsAsText) {
  const PipelineShape shape{k1F1B, 2, 1, 2};
  EXPECT_EQ(to_string(make_program(shape, 0)), "0RB0<1 0F0 0SF0>1 0F1 0SF1>1 0RB1<1 0B0 0W0 0B1 0W1");
  EXPECT_EQ(to_string(make_program(shape, 1)), "1RF0<0 1RF1<0 1F0 1B0 1W0 1SB0>0 1F1 1B1 1W1 1SB1>0");
  // Megatron's table for two ranks with two chunks: groups of two microbatches.
  EXPECT_EQ(
      to_string(compute_order({kInterleaved, 2, 2, 4}, 0)),
      "0F0 0F1 2F0 2F1 0F2 2B0 2W0 0F3 2B1 2W1 2F2 0B0 0W0 2F3 0B1 0W1 2B2 2W2 2B3 2W3 0B2 0W2 0B3 0W3");
}

TEST(Schedules, WhatIsRefusedSaysWhy) {
  const auto problem = [](const PipelineShape& shape) {
    const std::vector<std::string> problems = problems_of(shape);
    return problems.size() == 1 ? problems.front() : std::to_string(problems.size()) + " problems";
  };
  for (int microbatches : {1, 3}) {
    const std::string text = problem({kInterleaved, 2, 2, microbatches});
    EXPECT_NE(text.find("number of microbatches " + std::to_string(microbatches)), std::string::npos) << text;
    EXPECT_NE(text.find("--pipeline-model-parallel-size 2"), std::string::npos) << text;
    EXPECT_THROW(make_programs({kInterleaved, 2, 2, microbatches}), ConfigError);
  }
  for (int microbatches : {2, 4}) EXPECT_EQ(problem({kInterleaved, 2, 2, microbatches}), "0 problems");
  for (int microbatches : {1, 2, 3, 5}) EXPECT_EQ(problem({k1F1B, 4, 1, microbatches}), "0 problems");
  EXPECT_NE(problem({kInterleaved, 1, 2, 4}).find("needs --pipeline-model-parallel-size above 1"),
            std::string::npos);
  EXPECT_NE(problem({kInterleaved, 2, 1, 4}).find("needs --num-virtual-stages"), std::string::npos);
  EXPECT_NE(problem({kInterleaved, 4, 2, 8, 3}).find("must be at least --pipeline-model-parallel-size 4"),
            std::string::npos);
  EXPECT_NE(problem({kZbV, 2, 1, 4}).find("two chunks"), std::string::npos);
  EXPECT_NE(problem({k1F1B, 2, 2, 4}).find("one chunk"), std::string::npos);
  EXPECT_EQ(problem({k1F1B, 0, 0, 0}), "3 problems");
}

}  // namespace
}  // namespace weft
