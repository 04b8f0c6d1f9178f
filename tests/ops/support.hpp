// What the tests of operations share: lanes of a given number of workers, random tensors, conversion to and
// from double, tolerances by dtype, derivative checks, comparison of a real lane with a meta lane.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/lane.hpp"
#include "core/rng.hpp"
#include "ops/flat_pieces.hpp"

namespace weft::test {

using Values = std::vector<double>;

// An arena with workers, and the lane over them.
struct Bench {
  explicit Bench(int threads = 1, std::size_t bytes = std::size_t{1} << 28)
      : arena(Arena::host(bytes)), workers(threads), lane{*arena, workers, {}} {}
  explicit Bench(std::unique_ptr<Arena> own, int threads = 1)
      : arena(std::move(own)), workers(threads), lane{*arena, workers, {}} {}
  std::unique_ptr<Arena> arena;
  Workers workers;
  Lane lane;
};

inline double element(const Tensor& x, std::int64_t i) {
  const std::int64_t at = i / x.columns() * x.ld() + i % x.columns();
  switch (x.dtype()) {
    case DType::kF64:
      return x.data<double>()[at];
    case DType::kF32:
      return static_cast<double>(x.data<float>()[at]);
    case DType::kBF16:
      return static_cast<double>(static_cast<float>(x.data<bf16>()[at]));
    case DType::kF16:
      return static_cast<double>(static_cast<float>(x.data<f16>()[at]));
    case DType::kI32:
      return x.data<std::int32_t>()[at];
    case DType::kI64:
      return static_cast<double>(x.data<std::int64_t>()[at]);
    default:
      ADD_FAILURE() << "dtype";
      return 0;
  }
}

inline void set_element(const Tensor& x, std::int64_t i, double value) {
  const std::int64_t at = i / x.columns() * x.ld() + i % x.columns();
  switch (x.dtype()) {
    case DType::kF64:
      x.data<double>()[at] = value;
      break;
    case DType::kF32:
      x.data<float>()[at] = static_cast<float>(value);
      break;
    case DType::kBF16:
      x.data<bf16>()[at] = bf16(static_cast<float>(value));
      break;
    case DType::kF16:
      x.data<f16>()[at] = f16(static_cast<float>(value));
      break;
    case DType::kI32:
      x.data<std::int32_t>()[at] = static_cast<std::int32_t>(value);
      break;
    case DType::kI64:
      x.data<std::int64_t>()[at] = static_cast<std::int64_t>(value);
      break;
    default:
      ADD_FAILURE() << "dtype";
  }
}

inline Values values_of(const Tensor& x) {
  Values v(static_cast<std::size_t>(x.elems()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = element(x, static_cast<std::int64_t>(i));
  return v;
}

inline void assign(const Tensor& x, const Values& v) {
  ASSERT_EQ(x.elems(), static_cast<std::int64_t>(v.size()));
  for (std::size_t i = 0; i < v.size(); ++i) set_element(x, static_cast<std::int64_t>(i), v[i]);
}

inline Tensor make(Lane& lane, DType dtype, const Shape& shape, const Values& v) {
  Tensor x = lane.alloc(dtype, shape, "test");
  assign(x, v);
  return x;
}

inline Tensor zeros(Lane& lane, DType dtype, const Shape& shape) {
  Tensor x = lane.alloc(dtype, shape, "test");
  std::memset(x.raw(), 0, x.bytes());
  return x;
}

inline Tensor constant(Lane& lane, DType dtype, const Shape& shape, double value) {
  return make(lane, dtype, shape, Values(static_cast<std::size_t>(shape.elems()), value));
}

// Standard normal numbers times scale, rounded to the dtype.
inline Tensor random(Lane& lane, DType dtype, const Shape& shape, std::uint64_t seed, double scale = 1) {
  Tensor x = lane.alloc(dtype, shape, "test");
  const RandomKey key = RandomKey{seed}.with("test");
  for (std::int64_t i = 0; i < x.elems(); ++i) {
    set_element(x, i, scale * normal(key, static_cast<std::uint64_t>(i)));
  }
  return x;
}

// A view with ld > columns: columns [skip, skip + columns) of a wider random tensor.
inline Tensor random_strided(Lane& lane, DType dtype, Shape shape, std::uint64_t seed, double scale = 1) {
  const std::int64_t columns = shape[-1];
  shape.set(-1, columns + 5);
  return random(lane, dtype, shape, seed, scale).slice_columns(3, columns);
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const std::size_t size = bytes_of(a.dtype());
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    if (std::memcmp(a.raw() + static_cast<std::size_t>(r * a.ld()) * size,
                    b.raw() + static_cast<std::size_t>(r * b.ld()) * size,
                    static_cast<std::size_t>(a.columns()) * size) != 0) {
      return false;
    }
  }
  return true;
}

// Relative size of one rounding.
inline double unit(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0x1p-8;
  }
}

// |x − expected| ≤ tolerance · (the largest expected magnitude, at least `floor`: the size of what was
// summed).
inline void expect_near(const Values& x, const Values& expected, double tolerance, const std::string& what,
                        double floor = 1e-30) {
  ASSERT_EQ(x.size(), expected.size()) << what;
  double largest = floor;
  for (const double e : expected) {
    if (std::isfinite(e)) largest = std::max(largest, std::fabs(e));
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == expected[i]) continue;
    ASSERT_LE(std::fabs(x[i] - expected[i]), tolerance * largest)
        << what << " at " << i << ": " << x[i] << ", expected " << expected[i];
  }
}
inline void expect_near(const Tensor& x, const Values& expected, double tolerance, const std::string& what,
                        double floor = 1e-30) {
  expect_near(values_of(x), expected, tolerance, what, floor);
}

// Compares `gradient` with central differences of loss() in the elements of x (f64), every `stride`-th
// element.
inline void expect_gradient(const Tensor& x, const Values& gradient, const std::function<double()>& loss,
                            const std::string& what, std::int64_t stride = 1, double tolerance = 1e-7) {
  double largest = 1e-12;
  for (const double g : gradient) largest = std::max(largest, std::fabs(g));
  for (std::int64_t i = 0; i < x.elems(); i += stride) {
    const double old = element(x, i), step = 1e-5 * std::max(1.0, std::fabs(old));
    set_element(x, i, old + step);
    const double above = loss();
    set_element(x, i, old - step);
    const double below = loss();
    set_element(x, i, old);
    const double difference = (above - below) / (2 * step);
    ASSERT_NEAR(gradient[static_cast<std::size_t>(i)], difference, tolerance * largest)
        << what << " at " << i;
  }
}

inline double dot(const Tensor& x, const Tensor& y) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.elems(); ++i) sum += element(x, i) * element(y, i);
  return sum;
}

// The whole of flat tensors as long as x. Of an update, tag 1: weights decay.
inline ops::FlatPieces one_piece(Lane& lane, const Tensor& x, std::int64_t tag = 1) {
  return {lane, {{.elems = x.elems(), .tag = tag}}};
}

// Runs body on a real lane and on a meta lane: the same number of allocations and the same high-water mark.
// The body must not look at elements when lane.meta().
inline void expect_same_plan(const std::function<void(Lane&)>& body) {
  for (const int threads : {1, 2}) {
    Bench real(threads), meta(Arena::meta(), threads);
    body(real.lane);
    body(meta.lane);
    EXPECT_EQ(real.arena->allocations(), meta.arena->allocations());
    EXPECT_EQ(real.arena->high_water(), meta.arena->high_water());
    EXPECT_EQ(real.arena->in_use(), meta.arena->in_use());
  }
}

inline const std::vector<DType> kFloating = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

}  // namespace weft::test
