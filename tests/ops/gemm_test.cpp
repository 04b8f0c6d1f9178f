#include "ops/gemm.hpp"

#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

// c [m, n] = a · b with a(i, p), b(p, j) given as functions.
template <class A, class B>
Values product(std::int64_t m, std::int64_t n, std::int64_t k, const A& a, const B& b) {
  Values c(static_cast<std::size_t>(m * n), 0.0);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) sum += a(i, p) * b(p, j);
      c[static_cast<std::size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

double at(const Tensor& x, std::int64_t i, std::int64_t j) {
  return element(x, i * x.columns() + j);
}

// The sum has k roundings in the accumulator type and one in the result's.
double tolerance(DType inputs, DType result, std::int64_t k) {
  return unit(accumulator_of(inputs)) * (4 + static_cast<double>(k) / 4) + unit(result) * 1.01;
}

struct Size {
  std::int64_t m, n, k;
};
const std::vector<Size> kSizes = {{1, 1, 1},    {3, 17, 65},     {17, 3, 1},    {65, 33, 17},  {6, 16, 256},
                                  {7, 16, 257}, {100, 130, 300}, {64, 64, 513}, {13, 200, 64}, {1, 70, 40}};

TEST(Gemm, AllFormsAllTypesAllSizes) {
  for (const DType dtype : kFloating) {
    for (const auto [m, n, k] : kSizes) {
      Bench bench(2);
      Lane& lane = bench.lane;
      const std::string what = fmt::format("{} {}x{}x{}", name_of(dtype), m, n, k);
      const Tensor x = random_strided(lane, dtype, {m, k}, 1), w = random(lane, dtype, {n, k}, 2);
      const Tensor bias = random(lane, dtype, {n}, 3), dy = random_strided(lane, dtype, {m, n}, 4);
      Values y = product(
          m, n, k, [&](auto i, auto p) { return at(x, i, p); }, [&](auto p, auto j) { return at(w, j, p); });
      expect_near(ops::gemm_nt(lane, x, w), y, tolerance(dtype, dtype, k), what + " nt");
      for (std::int64_t i = 0; i < m * n; ++i) y[static_cast<std::size_t>(i)] += element(bias, i % n);
      expect_near(ops::gemm_nt(lane, x, w, bias), y, tolerance(dtype, dtype, k), what + " nt + bias");
      const Values dx = product(
          m, k, n, [&](auto i, auto p) { return at(dy, i, p); }, [&](auto p, auto j) { return at(w, p, j); });
      expect_near(ops::gemm_nn(lane, dy, w), dx, tolerance(dtype, dtype, n), what + " nn");
      Values dw = product(
          n, k, m, [&](auto i, auto p) { return at(dy, p, i); }, [&](auto p, auto j) { return at(x, p, j); });
      const DType wide = accumulator_of(dtype);
      const Tensor sum = constant(lane, wide, {n, k}, std::nan(""));
      ops::gemm_tn_accumulate(lane, dy, x, sum, 0);
      expect_near(sum, dw, tolerance(dtype, wide, m), what + " tn");
      ops::gemm_tn_accumulate(lane, dy, x, sum, 1);
      for (double& v : dw) v *= 2;
      expect_near(sum, dw, tolerance(dtype, wide, m), what + " tn beta 1");
      const Tensor db = constant(lane, wide, {n}, 0.5);
      ops::bias_gradient(lane, dy, db, 1);
      const Values columns = product(
          1, n, m, [&](auto, auto) { return 1.0; },
          [&](auto p, auto j) { return at(dy, p, j) + 0.5 / static_cast<double>(m); });
      expect_near(db, columns, tolerance(dtype, wide, m), what + " bias gradient");
    }
  }
}

TEST(Gemm, ResultMayBeStridedAndOfManyDimensions) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor x = random(lane, DType::kF32, {3, 5, 20}, 1), w = random(lane, DType::kF32, {9, 20}, 2);
  const Tensor whole = ops::gemm_nt(lane, x, w);
  EXPECT_EQ(whole.shape(), Shape({3, 5, 9}));
  const Tensor wide = constant(lane, DType::kF32, {3, 5, 12}, 7);
  ops::gemm_nt_into(lane, x, w, {}, wide.slice_columns(2, 9));
  EXPECT_TRUE(same_bits(wide.slice_columns(2, 9), whole));
  for (std::int64_t r = 0; r < 15; ++r) {
    for (const std::int64_t c : {0, 1, 11}) EXPECT_EQ(element(wide, r * 12 + c), 7);
  }
}

TEST(Gemm, WideResultOfNarrowOperands) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor x = random(lane, DType::kBF16, {5, 300}, 1), w = random(lane, DType::kBF16, {7, 300}, 2);
  const Tensor y = zeros(lane, DType::kF32, {5, 7});
  ops::gemm_nt_into(lane, x, w, {}, y);
  expect_near(y,
              product(
                  5, 7, 300, [&](auto i, auto p) { return at(x, i, p); },
                  [&](auto p, auto j) { return at(w, j, p); }),
              tolerance(DType::kBF16, DType::kF32, 300), "f32 of bf16");
}

// Cutting rows of the result, or computing with other numbers of workers, changes no bit.
TEST(Gemm, BitsDependNeitherOnRowsNorOnWorkers) {
  for (const DType dtype : kFloating) {
    Bench one(1);
    const Tensor x = random(one.lane, dtype, {150, 530}, 1), w = random(one.lane, dtype, {270, 530}, 2);
    const Tensor dy = random(one.lane, dtype, {150, 270}, 3);
    const Tensor y = ops::gemm_nt(one.lane, x, w), dx = ops::gemm_nn(one.lane, dy, w);
    const Tensor dw = zeros(one.lane, accumulator_of(dtype), {270, 530});
    ops::gemm_tn_accumulate(one.lane, dy, x, dw, 1);
    const Tensor db = zeros(one.lane, accumulator_of(dtype), {270});
    ops::bias_gradient(one.lane, dy, db, 0);
    for (const int threads : {2, 3}) {
      Bench many(threads);
      Lane& lane = many.lane;
      EXPECT_TRUE(same_bits(ops::gemm_nt(lane, x, w), y)) << threads;
      EXPECT_TRUE(same_bits(ops::gemm_nn(lane, dy, w), dx)) << threads;
      const Tensor sum = zeros(lane, accumulator_of(dtype), {270, 530});
      ops::gemm_tn_accumulate(lane, dy, x, sum, 1);
      EXPECT_TRUE(same_bits(sum, dw)) << threads;
      const Tensor bias_sum = zeros(lane, accumulator_of(dtype), {270});
      ops::bias_gradient(lane, dy, bias_sum, 0);
      EXPECT_TRUE(same_bits(bias_sum, db)) << threads;
      for (const auto& [begin, count] :
           std::vector<std::pair<int, int>>{{0, 1}, {1, 7}, {8, 100}, {108, 42}}) {
        EXPECT_TRUE(same_bits(ops::gemm_nt(lane, x.slice(begin, count), w), y.slice(begin, count)));
        EXPECT_TRUE(same_bits(ops::gemm_nn(lane, dy.slice(begin, count), w), dx.slice(begin, count)));
      }
      const Tensor part = zeros(lane, accumulator_of(dtype), {100, 530});
      ops::gemm_tn_accumulate(lane, dy.slice_columns(31, 100), x, part, 1);
      EXPECT_TRUE(same_bits(part, dw.slice(31, 100)));
    }
  }
}

TEST(Gemm, MetaLanePlansTheSame) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_plan([&](Lane& lane) {
      const Tensor x = lane.alloc(dtype, {40, 3, 50}, "x"), w = lane.alloc(dtype, {70, 50}, "w");
      const Tensor y = ops::gemm_nt(lane, x, w);
      const Tensor dx = ops::gemm_nn(lane, y, w);
      const Tensor dw = lane.alloc(DType::kF32, {70, 50}, "dw"), db = lane.alloc(DType::kF32, {70}, "db");
      ops::gemm_tn_accumulate(lane, y, x, dw, 0);
      ops::bias_gradient(lane, y, db, 0);
    });
  }
}

TEST(Gemm, ShapesThatDoNotFitAreNamed) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor x = zeros(lane, DType::kF32, {4, 5}), w = zeros(lane, DType::kF32, {6, 7});
  try {
    ops::gemm_nt(lane, x, w);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("[4, 5]"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("[6, 7]"), std::string::npos) << e.what();
  }
  EXPECT_THROW(ops::gemm_nt(lane, x, zeros(lane, DType::kBF16, {6, 5})), Error);
  EXPECT_THROW(ops::gemm_tn_accumulate(lane, x, x, zeros(lane, DType::kF32, {5, 5}), 0.5f), Error);
}

TEST(Gemm, NoRowsIsNothingAndNoDepthIsZero) {
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor w = zeros(lane, DType::kF32, {6, 5});
  EXPECT_EQ(ops::gemm_nt(lane, zeros(lane, DType::kF32, {0, 5}), w).elems(), 0);
  // A rank without tokens: its weight gradient is what it was, or zero.
  const Tensor dw = constant(lane, DType::kF32, {6, 5}, 3);
  const Tensor none_y = zeros(lane, DType::kF32, {0, 6}), none_x = zeros(lane, DType::kF32, {0, 5});
  ops::gemm_tn_accumulate(lane, none_y, none_x, dw, 1);
  EXPECT_EQ(element(dw, 7), 3);
  ops::gemm_tn_accumulate(lane, none_y, none_x, dw, 0);
  EXPECT_EQ(element(dw, 7), 0);
}

}  // namespace
}  // namespace weft
