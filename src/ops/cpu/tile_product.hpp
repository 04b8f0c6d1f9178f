// The inner product of everything: c += a · b for a small tile, in registers. Every element of c is one chain
// of fused multiply-adds over k in order, whatever the tile it falls in, so no cut of rows or columns changes
// a bit, and neither does the width of the vectors.
#pragma once

#include <cstdint>

namespace weft::ops::cpu {

// The baseline: 32-byte vectors, 16 registers: 6 × 2 sums, 2 of b, 1 of a.
struct Narrow {
  static constexpr int kBytes = 32, kRows = 6;
};
// AVX-512, chosen at run time: 64-byte vectors, 32 registers: 12 × 2 sums.
struct Wide {
  static constexpr int kBytes = 64, kRows = 12;
};

#if defined(__x86_64__) && defined(__GNUC__)
#define WEFT_WIDE_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), gnu::noinline]]
inline bool has_wide_vectors() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
#define WEFT_WIDE_TARGET
inline bool has_wide_vectors() {
  return false;
}
#endif

template <class T, int Bytes = Narrow::kBytes>
struct Vector {
  typedef T type __attribute__((vector_size(Bytes), aligned(alignof(T)), may_alias));
  static constexpr int kLanes = Bytes / static_cast<int>(sizeof(T));
};

template <class Isa, class T>
inline constexpr int kTileColumns = 2 * Vector<T, Isa::kBytes>::kLanes;
// Rows of operands of tile_product reach to a multiple of this.
template <class T>
inline constexpr int kPaddedColumns = kTileColumns<Wide, T>;

// `Rows` rows and kTileColumns columns: c = (accumulate ? c : 0) + Σ a[i · rs + p · cs] · b[p · ldb + j].
template <class Isa, int Rows, class T>
[[gnu::always_inline]] inline void register_tile(std::int64_t k, const T* __restrict a, std::int64_t rs,
                                                 std::int64_t cs, const T* __restrict b, std::int64_t ldb,
                                                 T* __restrict c, std::int64_t ldc, bool accumulate) {
  using V = typename Vector<T, Isa::kBytes>::type;
  constexpr int kLanes = Vector<T, Isa::kBytes>::kLanes;
  V sum[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) sum[i][0] = sum[i][1] = V{};
  for (std::int64_t p = 0; p < k; ++p) {
    const V b0 = *reinterpret_cast<const V*>(b);
    const V b1 = *reinterpret_cast<const V*>(b + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const T x = a[i * rs];
      sum[i][0] += x * b0;
      sum[i][1] += x * b1;
    }
    a += cs;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    V* out0 = reinterpret_cast<V*>(c + i * ldc);
    V* out1 = reinterpret_cast<V*>(c + i * ldc + kLanes);
    *out0 = accumulate ? *out0 + sum[i][0] : sum[i][0];
    *out1 = accumulate ? *out1 + sum[i][1] : sum[i][1];
  }
}

// The same for any number of rows up to Isa::kRows.
template <class Isa, class T>
[[gnu::always_inline]] inline void register_rows(std::int64_t rows, std::int64_t k, const T* a,
                                                 std::int64_t rs, std::int64_t cs, const T* b,
                                                 std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate) {
  if (rows == Isa::kRows) {
    register_tile<Isa, Isa::kRows>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
    return;
  }
  constexpr int kHalf = Isa::kRows / 2;
  if (rows >= kHalf) {
    register_tile<Isa, kHalf>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
    a += kHalf * rs, c += kHalf * ldc, rows -= kHalf;
  }
  for (; rows >= 2; rows -= 2, a += 2 * rs, c += 2 * ldc) {
    register_tile<Isa, 2>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
  }
  if (rows > 0) register_tile<Isa, 1>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
}

namespace detail {

template <class Isa, class T>
[[gnu::always_inline]] inline void tile_product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
                                                std::int64_t rs, std::int64_t cs, const T* b,
                                                std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate) {
  for (std::int64_t j = 0; j < n; j += kTileColumns<Isa, T>) {
    for (std::int64_t i = 0; i < m; i += Isa::kRows) {
      const std::int64_t rows = m - i < Isa::kRows ? m - i : Isa::kRows;
      register_rows<Isa>(rows, k, a + i * rs, rs, cs, b + j, ldb, c + i * ldc + j, ldc, accumulate);
    }
  }
}

template <class T>
WEFT_WIDE_TARGET void wide_tile_product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
                                        std::int64_t rs, std::int64_t cs, const T* b, std::int64_t ldb, T* c,
                                        std::int64_t ldc, bool accumulate) {
  tile_product<Wide>(m, n, k, a, rs, cs, b, ldb, c, ldc, accumulate);
}

}  // namespace detail

// c [m, n] = (accumulate ? c : 0) + a [m, k] · b [k, n]; element (i, p) of a is a[i · rs + p · cs]. Rows of b
// and c must reach to the next multiple of kPaddedColumns: those columns are read and written too.
template <class T>
void tile_product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t rs,
                  std::int64_t cs, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate) {
  if (has_wide_vectors()) {
    detail::wide_tile_product(m, n, k, a, rs, cs, b, ldb, c, ldc, accumulate);
  } else {
    detail::tile_product<Narrow>(m, n, k, a, rs, cs, b, ldb, c, ldc, accumulate);
  }
}

}  // namespace weft::ops::cpu
