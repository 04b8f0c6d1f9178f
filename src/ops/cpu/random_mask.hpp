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

// factors[i] for the elements first + i, i in [0, n): word (first + i) % 4 of the Philox block whose counter
// is
// ((first + i) / 4 | low_upper << 32, high). Element numbers stay below 2³⁴.
template <class A>
void keep_factors(RandomKey key, const Keep& keep, Index first, std::uint32_t low_upper, std::uint64_t high,
                  Index n, A* __restrict factors) {
  constexpr Index kGroups = 16;  // blocks at a time: the ten rounds run on vectors
  const auto scale = static_cast<A>(keep.scale);
  Index block = first / 4, done = 0;
  Index skip = first % 4;
  while (done < n) {
    std::uint32_t c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
    for (Index g = 0; g < kGroups; ++g) {
      c0[g] = static_cast<std::uint32_t>(block + g);
      c1[g] = low_upper;
      c2[g] = static_cast<std::uint32_t>(high);
      c3[g] = static_cast<std::uint32_t>(high >> 32);
    }
    auto k0 = static_cast<std::uint32_t>(key.value);
    auto k1 = static_cast<std::uint32_t>(key.value >> 32);
    for (int round = 0; round < 10; ++round) {
      for (Index g = 0; g < kGroups; ++g) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[g];
        const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2[g];
        const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1[g] ^ k0;
        const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3[g] ^ k1;
        c0[g] = n0;
        c1[g] = static_cast<std::uint32_t>(p1);
        c2[g] = n2;
        c3[g] = static_cast<std::uint32_t>(p0);
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    A run[4 * kGroups];
    for (Index g = 0; g < kGroups; ++g) {
      run[4 * g] = (c0[g] >> 8) >= keep.threshold ? scale : A{0};
      run[4 * g + 1] = (c1[g] >> 8) >= keep.threshold ? scale : A{0};
      run[4 * g + 2] = (c2[g] >> 8) >= keep.threshold ? scale : A{0};
      run[4 * g + 3] = (c3[g] >> 8) >= keep.threshold ? scale : A{0};
    }
    const Index count = std::min(n - done, 4 * kGroups - skip);
    std::copy_n(run + skip, count, factors + done);
    done += count;
    block += kGroups;
    skip = 0;
  }
}

}  // namespace weft::ops::cpu
