// One target token in the whole batch: whatever rank and microbatch has it, and however many have none, the
// gradient is one rank's. A mean taken over the wrong tokens shows here and nowhere else so clearly.
#include <gtest/gtest.h>

#include "layout_run.hpp"

namespace weft::testing {
namespace {

using Schedule = ParallelConfig::Schedule;

class OneTarget : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(OneTarget, GivesOneRanksGradientWhereverItIs) {
  constexpr std::int64_t kSamples = 12, kSequence = 12;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {  // = microbatch · dp + dp rank
    LayoutCase layout = GetParam();
    // At another place in each sample, so that under sequence parallel it is another rank's too.
    layout.only_target = sample * kSequence + sample * 5 % kSequence;
    std::string what;
    const LayoutResult& expected = reference_of(layout, 1);
    const double worst = worst_difference(run_layout(layout, 1), expected, 1e-5, &what);
    EXPECT_LE(worst, 1.0) << layout.name() << ": " << what;
    EXPECT_GT(expected.norms.at(0), 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, OneTarget,
                         ::testing::Values(LayoutCase{.model = "gpt2", .tp = 2, .pp = 2, .dp = 3},
                                           LayoutCase{.model = "gpt2",
                                                      .tp = 2,
                                                      .pp = 2,
                                                      .dp = 3,
                                                      .sequence_parallel = true,
                                                      .distributed = true},
                                           LayoutCase{.model = "llama",
                                                      .tp = 2,
                                                      .pp = 2,
                                                      .dp = 3,
                                                      .schedule = Schedule::kInterleaved,
                                                      .chunks = 2,
                                                      .distributed = true,
                                                      .groups = 1},
                                           LayoutCase{.model = "gpt2",
                                                      .tp = 2,
                                                      .pp = 2,
                                                      .dp = 3,
                                                      .schedule = Schedule::kZbV,
                                                      .chunks = 2,
                                                      .sequence_parallel = true,
                                                      .tensor_parallel_chunks = 3},
                                           LayoutCase{.model = "gpt2", .dp = 2, .cp = 2, .distributed = true},
                                           LayoutCase{.model = "llama",
                                                      .tp = 2,
                                                      .pp = 2,
                                                      .cp = 3,
                                                      .sequence_parallel = true,
                                                      .cp_methods = {"all_gather"}},
                                           LayoutCase{.model = "gpt2", .pp = 2, .dp = 3, .fused = true},
                                           LayoutCase{.model = "llama",
                                                      .pp = 2,
                                                      .dp = 3,
                                                      .schedule = Schedule::kZbH1,
                                                      .distributed = true,
                                                      .fused = true}));

}  // namespace
}  // namespace weft::testing
