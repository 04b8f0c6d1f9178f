// What the CPU kernels share: dtype dispatch, conversions, cutting work into pieces, scratch for the pieces
// in flight.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>

#include "core/lane.hpp"

// For what loops must have inlined to vectorise: the compiler's own measure gives up on the longer ones.
#define WEFT_ALWAYS_INLINE [[gnu::always_inline]] inline

namespace weft::ops::cpu {

using Index = std::int64_t;

// Calls body(T{}) with the C++ type of a floating dtype.
template <class Body>
decltype(auto) visit_floating(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(bf16{});
    case DType::kF16:
      return body(f16{});
    case DType::kF64:
      return body(double{});
    default:
      fail("kernels for floating dtypes only, not {}", name_of(dtype));
  }
}

// To the accumulator type and back. Half precision goes through the conversion instructions of the baseline.
WEFT_ALWAYS_INLINE float to_acc(float x) {
  return x;
}
WEFT_ALWAYS_INLINE double to_acc(double x) {
  return x;
}
WEFT_ALWAYS_INLINE float to_acc(bf16 x) {
  return static_cast<float>(x);
}
WEFT_ALWAYS_INLINE float to_acc(f16 x) {
#ifdef __F16C__
  return _cvtsh_ss(x.bits);
#else
  return static_cast<float>(x);
#endif
}

template <class T, class A>
WEFT_ALWAYS_INLINE T from_acc(A x) {
  if constexpr (std::same_as<T, f16>) {
#ifdef __F16C__
    T y;
    y.bits = _cvtss_sh(static_cast<float>(x), _MM_FROUND_TO_NEAREST_INT);
    return y;
#else
    return f16(static_cast<float>(x));
#endif
  } else if constexpr (std::same_as<T, bf16>) {
    return bf16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

// out[0, n) = in[0, n) in another floating type.
template <class From, class To>
inline void convert(const From* __restrict in, To* __restrict out, Index n) {
  Index i = 0;
#ifdef __F16C__
  if constexpr (std::same_as<From, f16> && std::same_as<To, float>) {
    for (; i + 8 <= n; i += 8) {
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
    }
  } else if constexpr (std::same_as<From, float> && std::same_as<To, f16>) {
    for (; i + 8 <= n; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
    }
  }
#endif
  for (; i < n; ++i) out[i] = from_acc<To>(to_acc(in[i]));
}

constexpr Index ceil_div(Index a, Index b) {
  return (a + b - 1) / b;
}
constexpr Index round_up(Index a, Index unit) {
  return ceil_div(a, unit) * unit;
}

// Elements one piece of an elementwise loop should have: enough to pay for handing it out.
inline constexpr Index kSpan = 16384;

// Cuts a matrix into spans: body(row, column, count). `flat` (every operand contiguous): one row of all
// elements.
template <class Body>
void for_spans(Lane& lane, Index rows, Index columns, bool flat, const Body& body) {
  if (flat) {
    lane.workers.parallel_for(rows * columns, kSpan,
                              [&](Index begin, Index end) { body(Index{0}, begin, end - begin); });
    return;
  }
  if (columns == 0) return;
  lane.workers.parallel_for(rows, std::max<Index>(1, kSpan / columns), [&](Index begin, Index end) {
    for (Index r = begin; r < end; ++r) body(r, Index{0}, columns);
  });
}

// body(first_row, last_row) over pieces of about kSpan elements.
template <class Body>
void for_rows(Lane& lane, Index rows, Index columns, const Body& body) {
  lane.workers.parallel_for(rows, std::max<Index>(1, kSpan / std::max<Index>(columns, 1)), body);
}

// Scratch for pieces in flight: at most one per worker at a time, so `threads` slots are always enough, and
// what a slot holds never outlives the piece.
class Slots {
 public:
  static constexpr int kMax = 256;
  explicit Slots(int count) : count_(count) {
    WEFT_CHECK(count <= kMax, "{} workers; at most {} are supported", count, kMax);
  }
  class Lease {
   public:
    explicit Lease(Slots& slots) : slots_(slots), index_(slots.take()) {}
    ~Lease() { slots_.used_[static_cast<std::size_t>(index_)].clear(std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    int index() const { return index_; }

   private:
    Slots& slots_;
    int index_;
  };

 private:
  int take() {
    for (int i = 0;; i = i + 1 == count_ ? 0 : i + 1) {
      if (!used_[static_cast<std::size_t>(i)].test_and_set(std::memory_order_acquire)) return i;
    }
  }
  int count_;
  std::array<std::atomic_flag, kMax> used_{};
};

// Rows cut into ranges whose borders depend only on the number of rows.
struct RowRanges {
  explicit RowRanges(Index row_count)
      : rows(row_count),
        length(std::max<Index>(16, ceil_div(row_count, 64))),
        count(ceil_div(std::max<Index>(row_count, 1), length)) {}
  Index begin(Index i) const { return i * length; }
  Index end(Index i) const { return std::min(rows, (i + 1) * length); }
  Index rows, length, count;
};

// out[columns] = beta · out + Σ partial[i][columns] in order of i.
template <class A>
void reduce_rows(Lane& lane, const A* partial, Index count, Index columns, float beta, A* out) {
  lane.workers.parallel_for(columns, 256, [&](Index begin, Index end) {
    A sums[256];
    const Index n = end - begin;
    for (Index j = 0; j < n; ++j) sums[j] = 0;
    for (Index i = 0; i < count; ++i) {
      const A* __restrict row = partial + i * columns + begin;
      for (Index j = 0; j < n; ++j) sums[j] += row[j];
    }
    if (beta == 0) {
      for (Index j = 0; j < n; ++j) out[begin + j] = sums[j];
    } else {
      for (Index j = 0; j < n; ++j) out[begin + j] = static_cast<A>(beta) * out[begin + j] + sums[j];
    }
  });
}

}  // namespace weft::ops::cpu
