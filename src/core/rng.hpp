// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// 2011). A number is a pure function of (key, counter): the key says what it is for, the counter which global
// element it belongs to, so the values never depend on layout, order or thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace weft {

struct RandomKey {
  std::uint64_t value = 0;

  // A key for a part of what this key is for: key.with("dropout").with(layer).
  RandomKey with(std::uint64_t part) const;
  RandomKey with(std::string_view part) const;
};

using Philox = std::array<std::uint32_t, 4>;

constexpr Philox philox(RandomKey key, std::uint64_t counter_low, std::uint64_t counter_high = 0) {
  Philox c = {static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
              static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  auto k0 = static_cast<std::uint32_t>(key.value);
  auto k1 = static_cast<std::uint32_t>(key.value >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// [0, 1) with 24 bits.
constexpr float uniform(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

// The standard normal number of element `index` under `key` (Box-Muller in double: the same on every machine
// up to the last bits of its libm). Elements 2i and 2i + 1 are the cosine and the sine of one Philox block.
double normal(RandomKey key, std::uint64_t index);

// What normal() takes of a block: the radius and the angle come from (0, 1), so the logarithm is finite, and
// [0, 1).
struct NormalBits {
  double radius, angle;
};
constexpr NormalBits normal_bits(const Philox& bits) {
  const std::uint64_t a = (std::uint64_t{bits[0]} << 32) | bits[1];
  const std::uint64_t b = (std::uint64_t{bits[2]} << 32) | bits[3];
  return {(static_cast<double>(a >> 11) + 0.5) * 0x1p-53, static_cast<double>(b >> 11) * 0x1p-53};
}

}  // namespace weft
