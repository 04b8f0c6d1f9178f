// The inner product of everything: c += a · b for a small tile, in registers. Every element of c is one chain
// of fused multiply-adds over k in order, whatever the tile it falls in, so no cut of rows or columns changes
// a bit.
#pragma once

#include <cstdint>

namespace weft::ops::cpu {

template <class T>
struct Vector;
template <>
struct Vector<float> {
  typedef float type __attribute__((vector_size(32), aligned(4), may_alias));
  static constexpr int kLanes = 8;
};
template <>
struct Vector<double> {
  typedef double type __attribute__((vector_size(32), aligned(8), may_alias));
  static constexpr int kLanes = 4;
};

inline constexpr int kTileRows = 6;
template <class T>
inline constexpr int kTileColumns = 2 * Vector<T>::kLanes;

// Rows rows and kTileColumns columns: c = (accumulate ? c : 0) + Σ a[i · rs + p · cs] · b[p · ldb + j].
template <int Rows, class T>
inline void register_tile(std::int64_t k, const T* __restrict a, std::int64_t rs, std::int64_t cs,
                          const T* __restrict b, std::int64_t ldb, T* __restrict c, std::int64_t ldc,
                          bool accumulate) {
  using V = typename Vector<T>::type;
  constexpr int kLanes = Vector<T>::kLanes;
  V sum[Rows][2];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) sum[i][0] = sum[i][1] = V{};
  for (std::int64_t p = 0; p < k; ++p) {
    const V b0 = *reinterpret_cast<const V*>(b);
    const V b1 = *reinterpret_cast<const V*>(b + kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const T x = a[i * rs];
      sum[i][0] += x * b0;
      sum[i][1] += x * b1;
    }
    a += cs;
    b += ldb;
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
    V* out = reinterpret_cast<V*>(c + i * ldc);
    V* out1 = reinterpret_cast<V*>(c + i * ldc + kLanes);
    *out = accumulate ? *out + sum[i][0] : sum[i][0];
    *out1 = accumulate ? *out1 + sum[i][1] : sum[i][1];
  }
}

template <class T>
inline void register_tile(int rows, std::int64_t k, const T* a, std::int64_t rs, std::int64_t cs, const T* b,
                          std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate) {
  switch (rows) {
    case 1:
      return register_tile<1>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
    case 2:
      return register_tile<2>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
    case 3:
      return register_tile<3>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
    case 4:
      return register_tile<4>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
    case 5:
      return register_tile<5>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
    default:
      return register_tile<6>(k, a, rs, cs, b, ldb, c, ldc, accumulate);
  }
}

// c [m, n] = (accumulate ? c : 0) + a [m, k] · b [k, n]; element (i, p) of a is a[i · rs + p · cs]. Rows of b
// and c must reach to the next multiple of kTileColumns: those columns are read and written too.
template <class T>
void tile_product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t rs,
                  std::int64_t cs, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate) {
  for (std::int64_t j = 0; j < n; j += kTileColumns<T>) {
    for (std::int64_t i = 0; i < m; i += kTileRows) {
      const int rows = static_cast<int>(m - i < kTileRows ? m - i : kTileRows);
      register_tile(rows, k, a + i * rs, rs, cs, b + j, ldb, c + i * ldc + j, ldc, accumulate);
    }
  }
}

}  // namespace weft::ops::cpu
