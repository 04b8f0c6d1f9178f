// Transposition of square blocks in registers: a row of vector loads, shuffles, a row of vector stores.
#pragma once

#include "ops/cpu/support.hpp"
#include "ops/cpu/tile_product.hpp"

namespace weft::ops::cpu {

template <class A, class T>
WEFT_ALWAYS_INLINE typename Vector<A>::type load_vector(const T* from) {
  constexpr int kLanes = Vector<A>::kLanes;
  using V = typename Vector<A>::type;
  if constexpr (std::same_as<A, T>) {
    return *reinterpret_cast<const V*>(from);
#ifdef __AVX2__
  } else if constexpr (std::same_as<T, bf16>) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return V(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
#endif
#ifdef __F16C__
  } else if constexpr (std::same_as<T, f16>) {
    return V(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#endif
  } else {
    V v;
    for (int l = 0; l < kLanes; ++l) v[l] = to_acc(from[l]);
    return v;
  }
}

WEFT_ALWAYS_INLINE void transpose_block(Vector<float>::type (&r)[8]) {
  using V = Vector<float>::type;
  V s[8], t[8];
  for (int i = 0; i < 8; i += 2) {
    s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      t[i + 2 * j] = __builtin_shufflevector(s[i + j], s[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      t[i + 2 * j + 1] = __builtin_shufflevector(s[i + j], s[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = __builtin_shufflevector(t[i], t[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = __builtin_shufflevector(t[i], t[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

WEFT_ALWAYS_INLINE void transpose_block(Vector<double>::type (&r)[4]) {
  using V = Vector<double>::type;
  const V a = __builtin_shufflevector(r[0], r[1], 0, 4, 2, 6),
          b = __builtin_shufflevector(r[0], r[1], 1, 5, 3, 7);
  const V c = __builtin_shufflevector(r[2], r[3], 0, 4, 2, 6),
          d = __builtin_shufflevector(r[2], r[3], 1, 5, 3, 7);
  r[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  r[1] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  r[2] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  r[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

// out[p · ldo + i] = in[i · ldi + p] for `lines` lines i (at most one vector) and `depth` values p,
// converted. Writes whole vectors: out[p · ldo + i] for i past `lines` too (as zeros), so rows of out are
// overwritten in order of p and the last one needs room for a vector.
template <class A, class T>
inline void transpose_lines(const T* in, Index ldi, Index lines, Index depth, A* out, Index ldo) {
  using V = typename Vector<A>::type;
  constexpr int kLanes = Vector<A>::kLanes;
  Index p = 0;
  for (; p + kLanes <= depth; p += kLanes) {
    V r[kLanes];
    for (int i = 0; i < kLanes; ++i) r[i] = i < lines ? load_vector<A>(in + i * ldi + p) : V{};
    transpose_block(r);
    for (int i = 0; i < kLanes; ++i) *reinterpret_cast<V*>(out + (p + i) * ldo) = r[i];
  }
  for (; p < depth; ++p) {
    for (Index i = 0; i < kLanes; ++i) out[p * ldo + i] = i < lines ? to_acc(in[i * ldi + p]) : A{0};
  }
}

}  // namespace weft::ops::cpu
