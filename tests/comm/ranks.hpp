// Thread ranks with a lane each, and the numbers they exchange.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/local/launcher.hpp"
#include "core/rng.hpp"

namespace weft::test {

// Each rank's arena lives in its body, so it goes away with an unwinding stack: the hardest lifetime.
inline void run_ranks(const LocalOptions& options, const std::function<void(Communicator&, Lane&)>& body) {
  run_local_ranks(options, [&](Communicator& world) {
    const std::unique_ptr<Arena> arena = Arena::host(std::size_t{1} << 24);
    Workers workers(1);
    Lane lane{*arena, workers, {}};
    body(world, lane);
  });
}

inline void run_ranks(int ranks, const std::function<void(Communicator&, Lane&)>& body) {
  LocalOptions options;
  options.ranks = ranks;
  options.timeout = std::chrono::seconds(60);
  run_ranks(options, body);
}

// What the run's error says; empty without one.
inline std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// The element type of a value: what T holds of it.
template <class T>
T number(double value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(std::llround(value * 1000));
  } else if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return T(static_cast<float>(value));
  }
}
template <class T>
double plain(T x) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(x);
  else
    return static_cast<double>(static_cast<float>(x));
}

// Element `index` of what `rank` contributes to operation `what`.
template <class T>
T element(std::uint64_t what, int rank, std::int64_t index) {
  const RandomKey key = RandomKey{91}.with(what).with(static_cast<std::uint64_t>(rank));
  return number<T>(normal(key, static_cast<std::uint64_t>(index)));
}

// Writes value(i) to element i, strided or not.
template <class T>
void fill(const Tensor& x, const std::function<T(std::int64_t)>& value) {
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    for (std::int64_t c = 0; c < x.columns(); ++c)
      x.data<T>()[row * x.ld() + c] = value(row * x.columns() + c);
  }
}
template <class T>
T at(const Tensor& x, std::int64_t i) {
  return x.data<T>()[i / x.columns() * x.ld() + i % x.columns()];
}

// A tensor of this shape; with `strided`, a part of wider rows.
inline Tensor make(Lane& lane, DType dtype, const Shape& shape, bool strided) {
  if (!strided || shape.rank() == 0) return lane.alloc(dtype, shape, "test");
  Shape wide = shape;
  wide.set(-1, shape[-1] + 3);
  return lane.alloc(dtype, wide, "test").slice_columns(2, shape[-1]);
}

// The sum of element(what, r, index) over r < ranks, in rank order and in the accumulator type.
template <class T>
T sum_in_order(std::uint64_t what, const std::vector<int>& ranks, std::int64_t index) {
  if constexpr (std::is_integral_v<T>) {
    T sum = 0;
    for (const int r : ranks) sum = static_cast<T>(sum + element<T>(what, r, index));
    return sum;
  } else {
    using A = accumulator_t<T>;
    A sum = static_cast<A>(element<T>(what, ranks[0], index));
    for (std::size_t i = 1; i < ranks.size(); ++i) sum += static_cast<A>(element<T>(what, ranks[i], index));
    return static_cast<T>(sum);
  }
}

template <class T>
bool same(T a, T b) {
  if constexpr (std::is_arithmetic_v<T>)
    return a == b;
  else
    return a.bits == b.bits;
}

inline std::vector<int> all_ranks(int n) {
  std::vector<int> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(r);
  return ranks;
}

}  // namespace weft::test
