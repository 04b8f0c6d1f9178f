#include "ops/rope.hpp"

#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

ops::RopeTable table_of(Lane& lane, DType dtype, std::int64_t positions, std::int64_t rotary,
                        bool interleaved) {
  const Shape shape = {positions, rotary / 2};
  ops::RopeTable t{zeros(lane, accumulator_of(dtype), shape), zeros(lane, accumulator_of(dtype), shape),
                   interleaved};
  for (std::int64_t i = 0; i < shape.elems(); ++i) {
    const std::int64_t pair = i % shape[1], position = i / shape[1];
    const double angle = static_cast<double>(position) *
                         std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary));
    set_element(t.cos, i, std::cos(angle));
    set_element(t.sin, i, std::sin(angle));
  }
  return t;
}

TEST(Rope, RotatesPairsAndLeavesTheRest) {
  for (const DType dtype : kFloating) {
    for (const auto& [head_dim, rotary] :
         std::vector<std::pair<int, int>>{{2, 2}, {16, 16}, {20, 10}, {64, 64}}) {
      for (const bool interleaved : {false, true}) {
        for (const bool with_positions : {false, true}) {
          Bench bench(2);
          Lane& lane = bench.lane;
          const std::int64_t s = 7, b = 2, heads = 3, h = heads * head_dim;
          const Tensor x = random_strided(lane, dtype, {s, b, h}, 1);
          const ops::RopeTable table = table_of(lane, dtype, 20, rotary, interleaved);
          Tensor positions;
          if (with_positions) {
            positions = zeros(lane, DType::kI32, {s, b});
            for (std::int64_t r = 0; r < s * b; ++r)
              set_element(positions, r, static_cast<double>((r * 11 + 3) % 20));
          }
          const Values before = values_of(x);
          Values expected = before;
          for (std::int64_t r = 0; r < s * b; ++r) {
            const auto row = with_positions ? static_cast<std::int64_t>(element(positions, r)) : r / b;
            for (std::int64_t head = 0; head < heads; ++head) {
              for (std::int64_t i = 0; i < rotary / 2; ++i) {
                const std::int64_t base = r * h + head * head_dim;
                const auto first = static_cast<std::size_t>(base + (interleaved ? 2 * i : i));
                const auto second =
                    static_cast<std::size_t>(base + (interleaved ? 2 * i + 1 : i + rotary / 2));
                const double c = element(table.cos, row * rotary / 2 + i),
                             sn = element(table.sin, row * rotary / 2 + i);
                expected[first] = before[first] * c - before[second] * sn;
                expected[second] = before[first] * sn + before[second] * c;
              }
            }
          }
          ops::rope_in_place(lane, x, table, positions, head_dim, false);
          expect_near(x, expected, unit(dtype) * 1.01 + unit(accumulator_of(dtype)) * 2, "rope");
          ops::rope_in_place(lane, x, table, positions, head_dim, true);
          expect_near(x, before, unit(dtype) * 4, "and back");
        }
      }
    }
  }
}

TEST(Rope, InverseIsTheDerivative) {
  for (const bool interleaved : {false, true}) {
    Bench bench;
    Lane& lane = bench.lane;
    const Tensor x = random(lane, DType::kF64, {5, 1, 16}, 1), dy = random(lane, DType::kF64, {5, 1, 16}, 2);
    const ops::RopeTable table = table_of(lane, DType::kF64, 5, 6, interleaved);
    const Tensor dx = make(lane, DType::kF64, dy.shape(), values_of(dy));
    ops::rope_in_place(lane, dx, table, {}, 8, true);
    expect_gradient(
        x, values_of(dx),
        [&] {
          const Tensor y = make(lane, DType::kF64, x.shape(), values_of(x));
          ops::rope_in_place(lane, y, table, {}, 8, false);
          return dot(y, dy);
        },
        "dx");
  }
}

TEST(Rope, Faults) {
  Bench bench;
  Lane& lane = bench.lane;
  const ops::RopeTable table = table_of(lane, DType::kF32, 4, 8, false);
  EXPECT_THROW(ops::rope_in_place(lane, zeros(lane, DType::kF32, {5, 1, 8}), table, {}, 8, false), Error);
  EXPECT_THROW(ops::rope_in_place(lane, zeros(lane, DType::kF32, {4, 1, 8}), table, {}, 4, false), Error);
  const Tensor far = make(lane, DType::kI32, {1, 1}, {4});
  EXPECT_THROW(ops::rope_in_place(lane, zeros(lane, DType::kF32, {1, 1, 8}), table, far, 8, false), Error);
}

}  // namespace
}  // namespace weft
