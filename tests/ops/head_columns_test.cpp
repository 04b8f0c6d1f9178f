#include "ops/head_columns.hpp"

#include "ops/elementwise.hpp"
#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

TEST(HeadColumns, EveryHeadHasThem) {
  for (const DType dtype : kFloating) {
    for (const auto& [heads, head_dim, first, d] :
         {std::array{1, 4, 0, 4}, {3, 7, 2, 5}, {5, 6, 0, 2}, {2, 9, 8, 1}}) {
      Bench bench(2);
      Lane& lane = bench.lane;
      const Tensor x = random(lane, dtype, {4, 3, d + 2}, 1).slice_columns(1, d);  // strided
      const Tensor y = random(lane, dtype, {4, 3, heads * head_dim}, 2);
      const std::vector<double> before = values_of(y), from = values_of(x);
      ops::copy_to_heads(lane, x, y, head_dim, first);
      for (std::int64_t i = 0; i < y.elems(); ++i) {
        const std::int64_t row = i / (heads * head_dim), c = i % head_dim - first;
        const bool among = c >= 0 && c < d;
        EXPECT_EQ(element(y, i),
                  among ? from[static_cast<std::size_t>(row * d + c)] : before[static_cast<std::size_t>(i)]);
      }
    }
  }
}

TEST(HeadColumns, SumIsTheDerivativeOfTheCopy) {
  for (const DType dtype : kFloating) {
    Bench bench(2);
    Lane& lane = bench.lane;
    const std::int64_t heads = 5, head_dim = 6, first = 1, d = 3;
    const Tensor y = random(lane, dtype, {4, 3, heads * head_dim}, 2);
    const Tensor x = random(lane, dtype, {4, 3, d}, 1);
    ops::sum_of_heads(lane, y, head_dim, first, x);
    std::vector<double> expected;
    for (std::int64_t r = 0; r < 12; ++r) {
      for (std::int64_t c = 0; c < d; ++c) {
        double sum = 0;
        for (std::int64_t h = 0; h < heads; ++h) sum += element(y, (r * heads + h) * head_dim + first + c);
        expected.push_back(sum);
      }
    }
    expect_near(x, expected, unit(dtype) * 4 + unit(accumulator_of(dtype)) * 8, "x");
  }
}

}  // namespace
}  // namespace weft
