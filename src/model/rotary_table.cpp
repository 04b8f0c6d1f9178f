#include "model/rotary_table.hpp"

#include <cmath>
#include <numbers>

#include "ops/elementwise.hpp"

namespace weft {

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
  std::vector<double> cos, sin;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto position = static_cast<double>(positions.of(row));
    for (const double f : frequencies) {
      cos.push_back(std::cos(position * f));
      sin.push_back(std::sin(position * f));
    }
  }
  ops::copy(lane, Tensor::borrow(cos.data(), DType::kF64, shape), table.cos);
  ops::copy(lane, Tensor::borrow(sin.data(), DType::kF64, shape), table.sin);
  return table;
}

}  // namespace weft
