#include "ops/elementwise.hpp"

#include <limits>

#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

const std::vector<Shape> kShapes = {{1}, {3}, {17, 65}, {3, 5, 7}, {40000}};

TEST(Elementwise, FillAndScale) {
  for (const DType dtype : kFloating) {
    Bench bench(2);
    const Tensor x = random_strided(bench.lane, dtype, {17, 65}, 1);
    Values expected = values_of(x);
    ops::scale_in_place(bench.lane, x, -0.75);
    for (double& v : expected) v *= -0.75;
    expect_near(x, expected, unit(dtype) * 1.01, "scale");
    ops::fill(bench.lane, x, 1.5);
    for (const double v : values_of(x)) EXPECT_EQ(v, 1.5);
    const Tensor ids = zeros(bench.lane, DType::kI32, {5});
    ops::fill(bench.lane, ids, -100);
    EXPECT_EQ(element(ids, 4), -100);
  }
}

TEST(Elementwise, CopyConvertsBetweenAllTypesAndStrides) {
  for (const DType from : kFloating) {
    for (const DType to : kFloating) {
      for (const Shape& shape : kShapes) {
        Bench bench(2);
        const Tensor x = random_strided(bench.lane, from, shape, 1),
                     y = random_strided(bench.lane, to, shape, 2);
        ops::copy(bench.lane, x, y);
        for (std::int64_t i = 0; i < x.elems(); ++i) {
          const Tensor one = zeros(bench.lane, to, {1});
          set_element(one, 0, element(x, i));  // through the scalar conversions of core
          ASSERT_EQ(element(y, i), element(one, 0)) << name_of(from) << " to " << name_of(to) << " at " << i;
        }
        const Tensor z = ops::cast(bench.lane, x, to, "cast");
        EXPECT_EQ(values_of(z), values_of(y));
        EXPECT_TRUE(z.contiguous());
      }
    }
  }
}

TEST(Elementwise, SpecialValuesSurviveConversion) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Bench bench;
    Values v(16, 1.0);  // a whole vector, so that the vector conversions are met
    v[3] = kInf, v[5] = -kInf, v[7] = std::nan(""), v[9] = 1e38, v[10] = -0.0, v[11] = 1e-7;
    const Tensor y = ops::cast(bench.lane, make(bench.lane, DType::kF32, {16}, v), dtype, "y");
    EXPECT_EQ(element(y, 3), kInf);
    EXPECT_EQ(element(y, 5), -kInf);
    EXPECT_TRUE(std::isnan(element(y, 7)));
    EXPECT_TRUE(std::signbit(element(y, 10)));
    EXPECT_EQ(std::isinf(element(y, 9)), dtype == DType::kF16);
  }
}

TEST(Elementwise, AddInPlace) {
  for (const DType dtype : kFloating) {
    for (const DType other : kFloating) {
      for (const Shape& shape : kShapes) {
        Bench bench(2);
        const Tensor x = random(bench.lane, dtype, shape, 1), y = random_strided(bench.lane, other, shape, 2);
        Values expected = values_of(x);
        for (std::int64_t i = 0; i < x.elems(); ++i) expected[static_cast<std::size_t>(i)] += element(y, i);
        ops::add_in_place(bench.lane, x, y);
        expect_near(x, expected, unit(dtype) * 1.01 + unit(accumulator_of(dtype)), "add");
      }
    }
  }
}

TEST(Elementwise, SumsAreExactEnoughAndTheSameForAnyWorkers) {
  for (const DType dtype : kFloating) {
    for (const Shape& shape : std::vector<Shape>{{1}, {17, 65}, {4096}, {4097}, {3, 77, 191}}) {
      Bench one(1);
      const Tensor x = random_strided(one.lane, dtype, shape, 1);
      const Tensor out = zeros(one.lane, DType::kF64, {1});
      const Tensor squares = zeros(one.lane, DType::kF64, {1});
      ops::sum(one.lane, x, out);
      long double sum = 0, square = 0, size = 0;
      for (const double v : values_of(x))
        sum += v, square += static_cast<long double>(v) * v, size += std::fabs(v);
      EXPECT_NEAR(element(out, 0), static_cast<double>(sum), 1e-13 * static_cast<double>(size));
      // A strided view and its compact copy are the same numbers in the same order.
      const Tensor compact = ops::cast(one.lane, x, dtype, "compact");
      const Tensor flat = compact.view({x.elems()});
      ops::sums_of_squares(one.lane, one_piece(one.lane, flat, 0), flat, squares);
      EXPECT_NEAR(element(squares, 0), static_cast<double>(square), 1e-13 * static_cast<double>(square));
      for (const int threads : {1, 2, 3}) {
        Bench many(threads);
        const Tensor again = zeros(many.lane, DType::kF64, {1});
        ops::sum(many.lane, compact, again);
        EXPECT_TRUE(same_bits(again, out));
        ops::sums_of_squares(many.lane, one_piece(many.lane, flat, 0), flat, again);
        EXPECT_TRUE(same_bits(again, squares));
      }
    }
  }
}

TEST(Elementwise, FindsTheFirstNonfinite) {
  for (const DType dtype : kFloating) {
    Bench bench(3);
    const Tensor x = random_strided(bench.lane, dtype, {300, 200}, 1);
    EXPECT_EQ(ops::find_nonfinite(bench.lane, x), -1);
    set_element(x, 59999, std::nan(""));
    EXPECT_EQ(ops::find_nonfinite(bench.lane, x), 59999);
    set_element(x, 20001, std::numeric_limits<double>::infinity());
    set_element(x, 20007, std::nan(""));
    EXPECT_EQ(ops::find_nonfinite(bench.lane, x), 20001);
    set_element(x, 0, -std::numeric_limits<double>::infinity());
    EXPECT_EQ(ops::find_nonfinite(bench.lane, x), 0);
  }
}

TEST(Elementwise, MetaLanePlansTheSame) {
  expect_same_plan([](Lane& lane) {
    const Tensor x = lane.alloc(DType::kBF16, {50, 100}, "x"), out = lane.alloc(DType::kF64, {1}, "out");
    ops::fill(lane, x, 1);
    const Tensor y = ops::cast(lane, x, DType::kF32, "y");
    ops::add_in_place(lane, x, y);
    ops::scale_in_place(lane, x, 2);
    ops::sum(lane, x, out);
    ops::sums_of_squares(lane, one_piece(lane, y, 0), y.view({y.elems()}), out);
    EXPECT_EQ(ops::find_nonfinite(lane, x), -1);
  });
}

TEST(Elementwise, MismatchIsNamed) {
  Bench bench;
  EXPECT_THROW(
      ops::copy(bench.lane, zeros(bench.lane, DType::kF32, {3}), zeros(bench.lane, DType::kF32, {4})), Error);
  EXPECT_THROW(ops::scale_in_place(bench.lane, zeros(bench.lane, DType::kI32, {3}), 2), Error);
  // A device without kernels says so.
  std::vector<std::byte> memory(4096);
  Arena cuda(Device{DeviceKind::kCuda, 0}, memory.data(), memory.size());
  Lane lane{cuda, bench.workers, {}};
  const Tensor x = lane.alloc(DType::kF32, {3}, "x");
  EXPECT_THROW(ops::fill(lane, x, 0), Error);
}

}  // namespace
}  // namespace weft
