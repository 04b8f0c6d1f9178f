#include "core/rng.hpp"

#include <cmath>
#include <numbers>

namespace weft {
namespace {

// splitmix64's finaliser (Steele, Lea, Flood 2014): a bijection that mixes every bit.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

RandomKey RandomKey::with(std::uint64_t part) const {
  return {mix(mix(value) ^ part)};
}

RandomKey RandomKey::with(std::string_view part) const {
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : part) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return with(hash);
}

double normal(RandomKey key, std::uint64_t index) {
  const NormalBits bits = normal_bits(philox(key, index / 2));
  const double radius = std::sqrt(-2.0 * std::log(bits.radius));
  const double angle = 2.0 * std::numbers::pi * bits.angle;
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace weft
