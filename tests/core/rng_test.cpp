#include "core/rng.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace weft {
namespace {

// The known answers that come with Random123 (kat_vectors, philox4x32-10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0}, 0, 0), (Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0ULL}, ~0ULL, ~0ULL), (Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x299f31d0a4093822}, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Philox{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomKey, PartsDifferAndOrderCounts) {
  const RandomKey key{1234};
  std::set<std::uint64_t> seen{key.value};
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(key.with(i).value).second) << i;
  EXPECT_TRUE(seen.insert(key.with("init").value).second);
  EXPECT_TRUE(seen.insert(key.with("").value).second);
  EXPECT_NE(key.with("a").with("b").value, key.with("b").with("a").value);
  EXPECT_NE(key.with("ab").value, key.with("a").with("b").value);
  EXPECT_EQ(key.with("init").value, RandomKey{1234}.with("init").value);
}

TEST(Uniform, IsInZeroToOne) {
  EXPECT_EQ(uniform(0), 0.0F);
  EXPECT_LT(uniform(~0U), 1.0F);
  EXPECT_EQ(uniform(1U << 31), 0.5F);
}

TEST(NormalNumber, HasTheMomentsOfANormalDistribution) {
  constexpr int kCount = 200000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, pairs = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = normal({99}, static_cast<std::uint64_t>(i));
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    if (i % 2 == 1) pairs += x * normal({99}, static_cast<std::uint64_t>(i - 1));
  }
  // Five standard errors each.
  const double root = std::sqrt(kCount);
  EXPECT_NEAR(m1 / kCount, 0, 5 / root);
  EXPECT_NEAR(m2 / kCount, 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(m3 / kCount, 0, 5 * std::sqrt(15.0) / root);
  EXPECT_NEAR(m4 / kCount, 3, 5 * std::sqrt(96.0) / root);
  EXPECT_NEAR(pairs / kCount * 2, 0, 5 * std::sqrt(2.0) / root);
}

TEST(NormalNumber, TheLogarithmIsFiniteAtBothEnds) {
  EXPECT_GT(normal_bits({0, 0, 0, 0}).radius, 0);
  EXPECT_LE(normal_bits({~0U, ~0U, ~0U, ~0U}).radius, 1);
  EXPECT_LT(normal_bits({~0U, ~0U, ~0U, ~0U}).angle, 1);
}

}  // namespace
}  // namespace weft
