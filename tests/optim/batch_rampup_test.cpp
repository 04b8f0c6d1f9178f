#include "optim/batch_rampup.hpp"

#include <gtest/gtest.h>

namespace weft {
namespace {

// Samples that the first `count` updates consume.
std::int64_t consumed_after(const BatchRampup& ramp, std::int64_t count) {
  std::int64_t consumed = 0;
  for (; count > 0; --count) consumed += ramp.batch_size(consumed);
  return consumed;
}

TEST(BatchRampup, NoRamp) {
  const BatchRampup plain = {.global_batch_size = 12};
  EXPECT_EQ(plain.batch_size(0), 12);
  EXPECT_EQ(plain.iterations(100), 8);
  EXPECT_EQ(consumed_after(plain, 8), 96);
  EXPECT_TRUE(problems_of(plain, 4).empty());
}

// 4 → 16 by 4 over 60 samples: three increments of 20 samples.
TEST(BatchRampup, GrowsByIncrements) {
  const BatchRampup ramp = {.global_batch_size = 16, .start = 4, .increment = 4, .samples = 60};
  const std::pair<std::int64_t, std::int64_t> expected[] = {{0, 4},   {19, 4},  {20, 8},  {39, 8},   {40, 12},
                                                            {59, 12}, {60, 16}, {61, 16}, {1000, 16}};
  for (const auto& [consumed, size] : expected) EXPECT_EQ(ramp.batch_size(consumed), size) << consumed;
  // 5·4 = 20, 3·8 = 44, 2·12 = 68, then 16 each.
  EXPECT_EQ(consumed_after(ramp, 5), 20);
  EXPECT_EQ(consumed_after(ramp, 8), 44);
  EXPECT_EQ(consumed_after(ramp, 10), 68);
  EXPECT_EQ(consumed_after(ramp, 12), 100);
  EXPECT_EQ(ramp.iterations(100), 12);
  EXPECT_EQ(ramp.iterations(99), 11);
  EXPECT_EQ(ramp.iterations(30), 6) << "a budget that ends inside the ramp";
  EXPECT_EQ(ramp.iterations(3), 0);
}

TEST(BatchRampup, InverseOfConsumed) {
  const BatchRampup ramp = {.global_batch_size = 30, .start = 3, .increment = 9, .samples = 1000};
  for (std::int64_t count = 0; count < 200; ++count) {
    EXPECT_EQ(ramp.iterations(consumed_after(ramp, count)), count);
    if (count > 0) {
      EXPECT_EQ(ramp.iterations(consumed_after(ramp, count) - 1), count - 1);
    }
  }
}

TEST(BatchRampup, StartAtFullSize) {
  const BatchRampup ramp = {.global_batch_size = 8, .start = 8, .increment = 4, .samples = 100};
  EXPECT_EQ(ramp.batch_size(0), 8);
  EXPECT_EQ((BatchRampup{.global_batch_size = 8, .start = 4, .increment = 4, .samples = 0}.batch_size(0)), 8);
}

TEST(BatchRampup, Problems) {
  EXPECT_TRUE(problems_of({.global_batch_size = 16, .start = 4, .increment = 4, .samples = 60}, 4).empty());
  EXPECT_EQ(problems_of({.global_batch_size = 16, .start = 4, .increment = 5, .samples = 60}, 4).size(), 2u);
  EXPECT_EQ(problems_of({.global_batch_size = 16, .start = 20, .increment = 4, .samples = 60}, 4).size(), 1u);
  EXPECT_EQ(problems_of({.global_batch_size = 16, .start = 4, .increment = 0, .samples = 60}, 4).size(), 1u);
}

}  // namespace
}  // namespace weft
