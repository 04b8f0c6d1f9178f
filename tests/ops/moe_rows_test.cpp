// The order of experts, and rows and values on their way there and back.
#include "ops/moe.hpp"
#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

Tensor integers(Lane& lane, const Shape& shape, const std::vector<int>& values) {
  return make(lane, DType::kI32, shape, Values(values.begin(), values.end()));
}

// n tokens with k choices of E experts, some of them none; the last expert has none at all.
Tensor some_choices(Lane& lane, std::int64_t n, std::int64_t k, std::int64_t experts) {
  const Tensor x = lane.alloc(DType::kI32, {n, k}, "choices");
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t j = 0; j < k; ++j) {
      const bool none = (t * 7 + j * 3) % 5 == 0;
      set_element(x, t * k + j,
                  none ? -1 : static_cast<double>((t * t + j) % std::max<std::int64_t>(1, experts - 1)));
    }
  }
  return x;
}

TEST(ExpertOrder, IsExpertThenTokenThenChoice) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor experts = integers(lane, {4, 2}, {3, 0, -1, 3, 0, 3, -1, -1});
  const ops::ExpertOrder order = ops::expert_order(lane, experts, 5);
  EXPECT_EQ(values_of(order.offsets), (Values{0, 2, 2, 2, 5, 5}));
  EXPECT_EQ(values_of(order.rows), (Values{2, 0, -1, 3, 1, 4, -1, -1}));
  const ops::ExpertOrder padded = ops::expert_order(lane, experts, 5, 4);
  EXPECT_EQ(values_of(padded.offsets), (Values{0, 4, 8, 12, 16, 20}));
  EXPECT_EQ(values_of(padded.rows), (Values{12, 0, -1, 13, 1, 14, -1, -1}));
  EXPECT_THROW(ops::expert_order(lane, experts, 5, 2), Error);  // expert 3 has three
  EXPECT_THROW(ops::expert_order(lane, experts, 3), Error);
  const ops::ExpertOrder one = ops::expert_order(lane, integers(lane, {3, 1}, {0, -1, 0}), 1);
  EXPECT_EQ(values_of(one.offsets), (Values{0, 2}));
  EXPECT_EQ(values_of(one.rows), (Values{0, -1, 1}));
  const ops::ExpertOrder none = ops::expert_order(lane, integers(lane, {0, 2}, {}), 3);
  EXPECT_EQ(values_of(none.offsets), (Values{0, 0, 0, 0}));
}

TEST(ExpertOrder, IsAStableSort) {
  for (const std::int64_t padded_to : {0, 90}) {
    Bench bench;
    const std::int64_t n = 100, k = 3, experts = 6;
    const Tensor choices = some_choices(bench.lane, n, k, experts);
    const ops::ExpertOrder order = ops::expert_order(bench.lane, choices, experts, padded_to);
    Values rows(static_cast<std::size_t>(n * k), -1), offsets{0};
    double row = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (element(choices, static_cast<std::int64_t>(i)) == static_cast<double>(e)) rows[i] = row++;
      }
      if (padded_to > 0) row = static_cast<double>((e + 1) * padded_to);
      offsets.push_back(row);
    }
    EXPECT_EQ(values_of(order.rows), rows);
    EXPECT_EQ(values_of(order.offsets), offsets);
  }
}

TEST(OwnExperts, HaveTheirNumbersHere) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor experts = integers(lane, {3, 2}, {0, 4, 5, -1, 6, 7});
  EXPECT_EQ(values_of(ops::own_experts(lane, experts, 4, 3)), (Values{-1, 0, 1, -1, 2, -1}));
  EXPECT_EQ(values_of(ops::own_experts(lane, experts, 0, 8)), values_of(experts));
  EXPECT_EQ(values_of(ops::own_experts(lane, experts, 1, 0)), Values(6, -1));
}

TEST(SpreadRows, AndCollectRows) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t h : {1, 37, 1100}) {
      for (const std::int64_t k : {1, 3}) {
        for (const std::int64_t padded_to : {0, 20}) {
          Bench bench(2);
          Lane& lane = bench.lane;
          const std::int64_t n = 20, experts = 4;
          const Tensor choices = some_choices(lane, n, k, experts);
          const Tensor rows = ops::expert_order(lane, choices, experts, padded_to).rows;
          const std::int64_t count = padded_to == 0 ? n * k : padded_to * experts;
          const Tensor x = random_strided(lane, dtype, {n, h}, 1);
          const Tensor out = constant(lane, dtype, {count, h + 2}, 99).slice_columns(1, h);
          ops::spread_rows(lane, x, rows, out);
          Values spread(static_cast<std::size_t>(count * h));
          for (std::int64_t i = 0; i < n * k; ++i) {
            const auto row = static_cast<std::int64_t>(element(rows, i));
            for (std::int64_t c = 0; row >= 0 && c < h; ++c) {
              spread[static_cast<std::size_t>(row * h + c)] = element(x, i / k * h + c);
            }
          }
          EXPECT_EQ(values_of(out), spread);

          const Tensor y = random_strided(lane, dtype, {count, h}, 2);
          Values sums(static_cast<std::size_t>(n * h));
          for (std::int64_t i = 0; i < n * k; ++i) {
            const auto row = static_cast<std::int64_t>(element(rows, i));
            for (std::int64_t c = 0; row >= 0 && c < h; ++c) {
              sums[static_cast<std::size_t>(i / k * h + c)] += element(y, row * h + c);
            }
          }
          const Tensor collected = ops::collect_rows(lane, y, rows);
          expect_near(collected, sums, unit(dtype) * 1.01 + unit(accumulator_of(dtype)) * 3, "collect");
          if (k == 1) {
            EXPECT_EQ(values_of(collected), sums);
          }
        }
      }
    }
  }
}

// Each is the derivative of the other.
TEST(SpreadRows, AndCollectRowsAreTransposed) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor rows = ops::expert_order(lane, some_choices(lane, 6, 2, 3), 3, 8).rows;
  const Tensor x = random(lane, DType::kF64, {6, 5}, 1), y = random(lane, DType::kF64, {24, 5}, 2),
               out = zeros(lane, DType::kF64, {24, 5});
  expect_gradient(
      x, values_of(ops::collect_rows(lane, y, rows)),
      [&] {
        ops::spread_rows(lane, x, rows, out);
        return dot(out, y);
      },
      "spread_rows");
  const Tensor values = random(lane, DType::kF64, {6, 2}, 3), grad = random(lane, DType::kF64, {24}, 4),
               spread = zeros(lane, DType::kF64, {24});
  expect_gradient(
      values, values_of(ops::collect_values(lane, grad, rows)),
      [&] {
        ops::spread_values(lane, values, rows, spread);
        return dot(spread, grad);
      },
      "spread_values");
}

// All rows have a pair: nothing is left to become 0.
TEST(SpreadRows, FillsAllRows) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor x = make(lane, DType::kBF16, {2, 2}, {1, 2, 3, 4});
  const Tensor out = constant(lane, DType::kBF16, {4, 2}, 99);
  ops::spread_rows(lane, x, integers(lane, {2, 2}, {3, 1, 0, 2}), out);
  EXPECT_EQ(values_of(out), (Values{3, 4, 1, 2, 3, 4, 1, 2}));
}

TEST(SpreadValues, AndCollectValues) {
  for (const DType dtype : kFloating) {
    Bench bench;
    Lane& lane = bench.lane;
    const Tensor rows = integers(lane, {3, 2}, {4, 0, -1, -1, 2, 1});
    const Tensor values = make(lane, dtype, {3, 2}, {1, 2, 3, 4, 5, 6}), out = constant(lane, dtype, {6}, 99);
    ops::spread_values(lane, values, rows, out);
    EXPECT_EQ(values_of(out), (Values{2, 6, 5, 0, 1, 0}));
    EXPECT_EQ(values_of(ops::collect_values(lane, out, rows)), (Values{1, 2, 0, 0, 5, 6}));
  }
}

TEST(MoeRows, WorkersAndMeta) {
  Bench one(1), two(2), three(3);
  const std::int64_t n = 300, k = 3;
  const Tensor choices = some_choices(one.lane, n, k, 8);
  const Tensor x = random(one.lane, DType::kBF16, {n, 200}, 1),
               y = random(one.lane, DType::kBF16, {n * k, 200}, 2);
  const auto run = [&](Lane& lane) {
    const Tensor rows = ops::expert_order(lane, choices, 8).rows,
                 out = lane.alloc(DType::kBF16, {n * k, 200}, "rows");
    ops::spread_rows(lane, x, rows, out);
    return std::pair(out, ops::collect_rows(lane, y, rows));
  };
  const auto first = run(one.lane);
  for (Bench* bench : {&two, &three}) {
    const auto [out, collected] = run(bench->lane);
    EXPECT_TRUE(same_bits(out, first.first));
    EXPECT_TRUE(same_bits(collected, first.second));
  }
  expect_same_plan([](Lane& lane) {
    const Tensor experts = lane.alloc(DType::kI32, {30, 2}, "experts"),
                 in = lane.alloc(DType::kF32, {30, 4}, "x"),
                 values = lane.alloc(DType::kF32, {30, 2}, "values");
    if (!lane.meta()) {
      for (const Tensor& t : {experts, in, values}) std::memset(t.raw(), 0, t.bytes());
    }
    const Tensor own = ops::own_experts(lane, experts, 0, 2);
    const ops::ExpertOrder order = ops::expert_order(lane, own, 2, 60);
    const Tensor out = lane.alloc(DType::kF32, {120, 4}, "out"),
                 flat = lane.alloc(DType::kF32, {120}, "flat");
    ops::spread_rows(lane, in, order.rows, out);
    ops::spread_values(lane, values, order.rows, flat);
    const Tensor back = ops::collect_rows(lane, out, order.rows),
                 values_back = ops::collect_values(lane, flat, order.rows);
  });
}

TEST(MoeRows, RefusesWhatDoesNotFit) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor x = zeros(lane, DType::kF32, {2, 3}), rows = integers(lane, {2, 1}, {0, 5});
  EXPECT_THROW(ops::spread_rows(lane, x, rows, zeros(lane, DType::kF32, {5, 3})), Error);  // row 5 of 5
  EXPECT_THROW(ops::spread_rows(lane, x, rows, zeros(lane, DType::kF32, {6, 4})), Error);
  EXPECT_THROW(ops::spread_rows(lane, x, rows, zeros(lane, DType::kBF16, {6, 3})), Error);
  EXPECT_THROW(ops::collect_rows(lane, x, rows), Error);
  EXPECT_THROW(ops::collect_rows(lane, x, zeros(lane, DType::kF32, {2, 1})), Error);
  EXPECT_THROW(ops::collect_values(lane, zeros(lane, DType::kF32, {5}), rows), Error);
}

}  // namespace
}  // namespace weft
