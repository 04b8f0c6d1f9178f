#include "ops/embedding.hpp"

#include "ops/elementwise.hpp"
#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

Tensor random_ids(Lane& lane, std::int64_t batch, std::int64_t length, std::int64_t vocabulary) {
  Tensor ids = zeros(lane, DType::kI32, {batch, length});
  for (std::int64_t i = 0; i < ids.elems(); ++i) {
    const Philox bits = philox(RandomKey{3}, static_cast<std::uint64_t>(i));
    set_element(
        ids, i,
        static_cast<double>(static_cast<std::int64_t>(bits[0] % static_cast<std::uint32_t>(vocabulary))));
  }
  return ids;
}

TEST(Embedding, LooksUpAndSumsBack) {
  for (const DType dtype : kFloating) {
    for (const Shape& shape : std::vector<Shape>{{1, 1, 1}, {5, 3, 17}, {40, 2, 300}}) {  // [s, b, h]
      Bench bench(2);
      Lane& lane = bench.lane;
      const std::int64_t s = shape[0], b = shape[1], h = shape[2], vocabulary = 11, first = 3, rows = 6;
      const Tensor ids = random_ids(lane, b, s, vocabulary),
                   table = random_strided(lane, dtype, {rows, h}, 1);
      if (s > 1) set_element(ids, 1, -1);
      const Tensor dy = random_strided(lane, dtype, shape, 2);
      Values y(static_cast<std::size_t>(shape.elems()), 0.0), dtable(static_cast<std::size_t>(rows * h), 0.5);
      for (std::int64_t t = 0; t < s; ++t) {
        for (std::int64_t i = 0; i < b; ++i) {
          const auto row = static_cast<std::int64_t>(element(ids, i * s + t)) - first;
          for (std::int64_t j = 0; j < h && row >= 0 && row < rows; ++j) {
            y[static_cast<std::size_t>((t * b + i) * h + j)] = element(table, row * h + j);
            dtable[static_cast<std::size_t>(row * h + j)] += element(dy, (t * b + i) * h + j);
          }
        }
      }
      EXPECT_EQ(values_of(ops::embedding(lane, ids, table, first)), y);
      const Tensor g = constant(lane, accumulator_of(dtype), {rows, h}, 0.5);
      ops::embedding_backward(lane, dy, ids, g, first, 1);
      expect_near(g, dtable, unit(accumulator_of(dtype)) * 16, "beta 1");
      ops::fill(lane, g, std::nan(""));
      ops::embedding_backward(lane, dy, ids, g, first, 0);
      for (double& v : dtable) v -= 0.5;
      expect_near(g, dtable, unit(accumulator_of(dtype)) * 16, "beta 0", 1);
    }
  }
}

TEST(Embedding, Positions) {
  for (const DType dtype : kFloating) {
    Bench bench(2);
    Lane& lane = bench.lane;
    const std::int64_t s = 5, b = 3, h = 150, positions = 9, first = 2;
    const Tensor x = random_strided(lane, dtype, {s, b, h}, 1),
                 table = random_strided(lane, dtype, {positions, h}, 2);
    const Tensor dy = random_strided(lane, dtype, {s, b, h}, 3);
    Values y = values_of(x), dtable(static_cast<std::size_t>(positions * h), 0.5);
    for (std::int64_t i = 0; i < x.elems(); ++i) {
      const std::int64_t row = first + i / h / b, j = i % h;
      y[static_cast<std::size_t>(i)] += element(table, row * h + j);
      dtable[static_cast<std::size_t>(row * h + j)] += element(dy, i);
    }
    ops::add_positions(lane, x, table, first);
    expect_near(x, y, unit(dtype) * 1.01, "x");
    const Tensor g = constant(lane, accumulator_of(dtype), {positions, h}, 0.5);
    ops::add_positions_backward(lane, dy, g, first, 1);
    expect_near(g, dtable, unit(accumulator_of(dtype)) * 8, "beta 1");
    ops::add_positions_backward(lane, dy, g, first, 0);
    EXPECT_EQ(element(g, 0), 0);  // rows without a position
    for (double& v : dtable) v -= 0.5;
    expect_near(g, dtable, unit(accumulator_of(dtype)) * 8, "beta 0", 1);
    EXPECT_THROW(ops::add_positions(lane, x, table, 5), Error);
  }
}

TEST(Embedding, WorkersAndMeta) {
  Bench one(1), three(3);
  const Tensor ids = random_ids(one.lane, 4, 100, 50), dy = random(one.lane, DType::kF32, {100, 4, 400}, 1);
  const Tensor a = zeros(one.lane, DType::kF32, {50, 400}), b = zeros(one.lane, DType::kF32, {50, 400});
  ops::embedding_backward(one.lane, dy, ids, a, 0, 0);
  ops::embedding_backward(three.lane, dy, ids, b, 0, 0);
  EXPECT_TRUE(same_bits(a, b));
  expect_same_plan([](Lane& lane) {
    const Tensor id = lane.alloc(DType::kI32, {2, 5}, "ids"),
                 table = lane.alloc(DType::kBF16, {7, 9}, "table");
    const Tensor g = lane.alloc(DType::kF32, {7, 9}, "dtable"), y = ops::embedding(lane, id, table, 0);
    ops::add_positions(lane, y, table, 0);
    ops::embedding_backward(lane, y, id, g, 0, 1);
    ops::add_positions_backward(lane, y, g, 0, 1);
  });
}

}  // namespace
}  // namespace weft
