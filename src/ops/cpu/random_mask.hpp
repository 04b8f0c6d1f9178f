// Runs of dropout factors: 1 / (1 − p) where kept, 0 where dropped. An element is kept when uniform(word) ≥
// p.
#pragma once

#include <cmath>

#include "core/rng.hpp"
#include "ops/cpu/support.hpp"

namespace weft::ops::cpu {

struct Keep {
  explicit Keep(double p)
      : threshold(static_cast<std::uint32_t>(std::ceil(p * 0x1p24))), scale(1.0 / (1.0 - p)) {}
  // bits >> 8 against p · 2²⁴: the comparison uniform(word) ≥ p in integers.
  std::uint32_t threshold;
  double scale;
};

// words[4 g + w]: word w of the Philox block with counter (block + g | low_upper << 32, high), g in [0,
// kBlocks).
inline constexpr Index kPhiloxBlocks = 16;
inline void philox_run(RandomKey key, std::uint32_t block, std::uint32_t low_upper, std::uint64_t high,
                       std::uint32_t* words) {
#ifdef __AVX2__
  // Four blocks to a vector, each word in the low half of 64 bits. The multiplication reads low halves only,
  // so what the other steps leave in the high halves of c0 and c2 never matters.
  constexpr Index kVectors = kPhiloxBlocks / 4;
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  const auto broadcast = [](std::uint64_t x) {
    return _mm256_set1_epi64x(static_cast<long long>(x & 0xffffffffu));
  };
  __m256i c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
  for (Index v = 0; v < kVectors; ++v) {
    c0[v] = _mm256_add_epi32(broadcast(block), _mm256_setr_epi64x(4 * v, 4 * v + 1, 4 * v + 2, 4 * v + 3));
    c1[v] = broadcast(low_upper);
    c2[v] = broadcast(high);
    c3[v] = broadcast(high >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(key.value);
  auto k1 = static_cast<std::uint32_t>(key.value >> 32);
  for (int round = 0; round < 10; ++round) {
    for (Index v = 0; v < kVectors; ++v) {
      const __m256i p0 = _mm256_mul_epu32(m0, c0[v]), p1 = _mm256_mul_epu32(m1, c2[v]);
      c0[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1[v]), broadcast(k0));
      c2[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3[v]), broadcast(k1));
      c1[v] = p1;
      c3[v] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (Index v = 0; v < kVectors; ++v) {
    const __m256i first =
        _mm256_blend_epi32(c0[v], _mm256_slli_epi64(c1[v], 32), 0xaa);  // words 0, 1 of each
    const __m256i second = _mm256_blend_epi32(c2[v], _mm256_slli_epi64(c3[v], 32), 0xaa);  // words 2, 3
    const __m256i even = _mm256_unpacklo_epi64(first, second), odd = _mm256_unpackhi_epi64(first, second);
    auto* out = reinterpret_cast<__m256i*>(words + 16 * v);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
#else
  for (Index g = 0; g < kPhiloxBlocks; ++g) {
    const std::uint32_t low = block + static_cast<std::uint32_t>(g);
    const Philox bits = philox(key, low | std::uint64_t{low_upper} << 32, high);
    std::copy(bits.begin(), bits.end(), words + 4 * g);
  }
#endif
}

// factors[i] for the elements first + i, i in [0, n): word (first + i) % 4 of the Philox block whose counter
// is
// ((first + i) / 4 | low_upper << 32, high). Element numbers stay below 2³⁴.
template <class A>
void keep_factors(RandomKey key, const Keep& keep, Index first, std::uint32_t low_upper, std::uint64_t high,
                  Index n, A* __restrict factors) {
  constexpr Index kWords = 4 * kPhiloxBlocks;
  const auto scale = static_cast<A>(keep.scale);
  Index done = 0, skip = first % 4;
  for (Index block = first / 4; done < n; block += kPhiloxBlocks, skip = 0) {
    std::uint32_t words[kWords];
    philox_run(key, static_cast<std::uint32_t>(block), low_upper, high, words);
    const Index count = std::min(n - done, kWords - skip);
    for (Index i = 0; i < count; ++i) {
      factors[done + i] = (words[skip + i] >> 8) >= keep.threshold ? scale : A{0};
    }
    done += count;
  }
}

}  // namespace weft::ops::cpu
