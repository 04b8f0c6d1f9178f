#include "model/rotary_table.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/elementwise.hpp"

namespace weft {

namespace {

// How much channel pair i keeps of its own frequency: 1 up to the pair that turns beta_fast times within the
// original context, 0 from the one that turns beta_slow times.
double yarn_share(const RotarySpec& spec, std::int64_t i) {
  const RopeScaling& s = spec.scaling;
  const auto dim = static_cast<double>(spec.dim);
  const auto pair_that_turns = [&](double times) {
    const double original = static_cast<double>(s.original_max_position_embeddings);
    return dim * std::log(original / (times * 2 * std::numbers::pi)) / (2 * std::log(spec.base));
  };
  double low = pair_that_turns(s.beta_fast), high = pair_that_turns(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // a step, without a division by zero
  return 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
}

}  // namespace

double yarn_magnitude(double factor, double x) {
  return factor > 1 ? 0.1 * x * std::log(factor) + 1 : 1;
}

double rotary_magnitude(const RopeScaling& s) {
  if (s.kind != RopeScaling::Kind::kYarn) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  return yarn_magnitude(s.factor, s.mscale) / yarn_magnitude(s.factor, s.mscale_all_dim);
}

std::vector<double> rotary_frequencies(const RotarySpec& spec) {
  std::vector<double> frequencies;
  const RopeScaling& s = spec.scaling;
  for (std::int64_t i = 0; i < spec.dim / 2; ++i) {
    const double f = std::pow(spec.base, -2.0 * static_cast<double>(i) / static_cast<double>(spec.dim));
    const double wavelength = 2 * std::numbers::pi / f;
    const double original = static_cast<double>(s.original_max_position_embeddings);
    double scaled = f;
    if (s.kind == RopeScaling::Kind::kLinear) {
      scaled = f / s.factor;
    } else if (s.kind == RopeScaling::Kind::kYarn) {
      const double share = yarn_share(spec, i);
      scaled = (1 - share) * f / s.factor + share * f;
    } else if (s.kind == RopeScaling::Kind::kLlama3 && wavelength > original / s.low_freq_factor) {
      scaled = f / s.factor;
    } else if (s.kind == RopeScaling::Kind::kLlama3 && wavelength >= original / s.high_freq_factor) {
      const double smooth =
          (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
      scaled = (1 - smooth) * f / s.factor + smooth * f;
    }
    frequencies.push_back(scaled);
  }
  return frequencies;
}

ops::RopeTable make_rotary_table(Lane& lane, const RotarySpec& spec, std::int64_t rows, DType dtype,
                                 ops::RowPositions positions) {
  const Shape shape{rows, spec.dim / 2};
  ops::RopeTable table{lane.alloc(accumulator_of(dtype), shape, "rotary table"),
                       lane.alloc(accumulator_of(dtype), shape, "rotary table"), spec.interleaved};
  if (lane.meta()) return table;
  const std::vector<double> frequencies = rotary_frequencies(spec);
  const double magnitude = rotary_magnitude(spec.scaling);
  std::vector<double> cos, sin;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto position = static_cast<double>(positions.of(row));
    for (const double f : frequencies) {
      cos.push_back(magnitude * std::cos(position * f));
      sin.push_back(magnitude * std::sin(position * f));
    }
  }
  ops::copy(lane, Tensor::borrow(cos.data(), DType::kF64, shape), table.cos);
  ops::copy(lane, Tensor::borrow(sin.data(), DType::kF64, shape), table.sin);
  return table;
}

}  // namespace weft
