// NumpyRandom: numpy.random.RandomState(seed), as far as Megatron's sample order needs it. The state is
// MT19937 seeded with Knuth's generator (std::mt19937's own seeding), and shuffle draws by masked rejection,
// highest index first.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace weft {

class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  // A whole number in [0, max], both ends included.
  std::uint64_t interval(std::uint64_t max) {
    if (max == 0) return 0;
    const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(max);
    std::uint64_t value = 0;
    do {
      value = max <= 0xffffffffu ? next32() : next64();
      value &= mask;
    } while (value > max);
    return value;
  }

  // The same permutation as RandomState.shuffle of a one-dimensional array of this length, whatever its type.
  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) {
      const auto j = static_cast<std::size_t>(interval(i));
      std::swap(values[i], values[j]);
    }
  }

 private:
  std::uint64_t next32() { return engine_(); }
  std::uint64_t next64() {
    const std::uint64_t high = engine_();
    return (high << 32) | engine_();
  }

  std::mt19937 engine_;
};

}  // namespace weft
