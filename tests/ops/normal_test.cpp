#include "ops/normal.hpp"

#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

TEST(Normal, IsTheDocumentedFunctionOfTheElement) {
  Bench bench(2);
  const RandomKey key = RandomKey{3}.with("init");
  for (const DType dtype : kFloating) {
    const Tensor wide = zeros(bench.lane, dtype, {5, 9});
    const Tensor x = wide.slice_columns(1, 7);
    ops::fill_normal(bench.lane, x, key, 0.5, {.first_row = 2, .first_column = 3, .columns = 11});
    for (std::int64_t r = 0; r < 5; ++r) {
      EXPECT_EQ(element(wide, r * 9), 0);
      EXPECT_EQ(element(wide, r * 9 + 8), 0);
      for (std::int64_t c = 0; c < 7; ++c) {
        const double expected = 0.5 * normal(key, static_cast<std::uint64_t>((r + 2) * 11 + c + 3));
        EXPECT_NEAR(element(x, r * 7 + c), expected, unit(dtype) * std::abs(expected) * 1.01);
      }
    }
  }
}

TEST(Normal, PartsOfAMatrixAreThoseOfTheWhole) {
  Bench bench(3);
  const RandomKey key{17};
  const Tensor whole = zeros(bench.lane, DType::kF32, {6, 10}), vector = zeros(bench.lane, DType::kF32, {60});
  ops::fill_normal(bench.lane, whole, key, 1, {.columns = 10});
  ops::fill_normal(bench.lane, vector, key, 1, {});
  EXPECT_TRUE(same_bits(whole.view({60}), vector));
  const Tensor part = zeros(bench.lane, DType::kF32, {3, 4});
  ops::fill_normal(bench.lane, part, key, 1, {.first_row = 3, .first_column = 5, .columns = 10});
  for (std::int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(element(part, i), element(whole, (3 + i / 4) * 10 + 5 + i % 4)) << i;
  }
}

}  // namespace
}  // namespace weft
