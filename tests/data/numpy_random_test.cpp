// Reference values: numpy 2.4, RandomState(seed) and two shuffles in a row.
#include "data/numpy_random.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace weft {
namespace {

template <class T>
std::vector<T> shuffled(NumpyRandom& random, std::size_t size) {
  std::vector<T> values(size);
  std::iota(values.begin(), values.end(), T{0});
  random.shuffle(std::span(values));
  return values;
}

TEST(NumpyRandom, ShufflesAsNumpyDoes) {
  NumpyRandom a(1234);
  EXPECT_EQ(shuffled<std::int64_t>(a, 12), (std::vector<std::int64_t>{7, 8, 11, 2, 9, 10, 1, 0, 4, 5, 6, 3}));
  EXPECT_EQ(shuffled<std::uint32_t>(a, 7), (std::vector<std::uint32_t>{1, 0, 3, 2, 5, 4, 6}));
  NumpyRandom b(4294967295u);
  EXPECT_EQ(shuffled<std::int64_t>(b, 12), (std::vector<std::int64_t>{11, 8, 5, 9, 1, 10, 6, 0, 4, 7, 2, 3}));
  EXPECT_EQ(shuffled<std::uint32_t>(b, 7), (std::vector<std::uint32_t>{0, 4, 5, 1, 6, 2, 3}));
}

TEST(NumpyRandom, ShufflesLongArrays) {
  NumpyRandom random(5);
  std::uint64_t hash = 0;
  for (const std::int32_t value : shuffled<std::int32_t>(random, 100003))
    hash = hash * 31 + static_cast<std::uint64_t>(value);
  EXPECT_EQ(hash, 923852890206577965u);
}

TEST(NumpyRandom, IntervalsIncludeBothEnds) {
  NumpyRandom random(3);
  std::vector<int> seen(3);
  for (int i = 0; i < 100; ++i) ++seen[random.interval(2)];
  for (const int count : seen) EXPECT_GT(count, 15);
  EXPECT_EQ(random.interval(0), 0u);
  const std::uint64_t large = std::uint64_t{1} << 40;
  bool beyond_32_bits = false;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t value = random.interval(large);
    EXPECT_LE(value, large);
    beyond_32_bits = beyond_32_bits || value > 0xffffffffu;
  }
  EXPECT_TRUE(beyond_32_bits);
}

}  // namespace
}  // namespace weft
