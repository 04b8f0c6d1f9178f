// The frequencies of rotary positions.
#pragma once

#include "core/lane.hpp"
#include "model/spec.hpp"
#include "ops/rope.hpp"
#include "ops/row_positions.hpp"

namespace weft {

// YaRN's m(x) = 0.1 x ln(factor) + 1, of a factor above 1; else 1.
double yarn_magnitude(double factor, double x);
// What cos and sin are multiplied by: 1 but for YaRN (see RopeScaling).
double rotary_magnitude(const RopeScaling& scaling);

// inv_freq[i] = base^(−2i/dim), then scaled: linear divides by `factor`; llama3 keeps wavelengths under
// original/high_freq_factor, divides those over original/low_freq_factor, and blends between (Llama 3.1
// report); yarn as transformers' _compute_yarn_parameters.
std::vector<double> rotary_frequencies(const RotarySpec& spec);

// cos and sin of position × frequency, times rotary_magnitude, [rows, dim/2], of rows at `positions`;
// computed in double on the host.
ops::RopeTable make_rotary_table(Lane& lane, const RotarySpec& spec, std::int64_t rows, DType dtype,
                                 ops::RowPositions positions = {});

}  // namespace weft
