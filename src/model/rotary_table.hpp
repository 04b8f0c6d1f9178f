// The frequencies of rotary positions.
#pragma once

#include "core/lane.hpp"
#include "model/spec.hpp"
#include "ops/rope.hpp"
#include "ops/row_positions.hpp"

namespace weft {

// inv_freq[i] = base^(−2i/dim), then scaled: linear divides by `factor`; llama3 keeps wavelengths under
// original/high_freq_factor, divides those over original/low_freq_factor, and blends between (Llama 3.1
// report).
std::vector<double> rotary_frequencies(const RotarySpec& spec);

// cos and sin of position × frequency, [rows, dim/2], of rows at `positions`; computed in double on the host.
ops::RopeTable make_rotary_table(Lane& lane, const RotarySpec& spec, std::int64_t rows, DType dtype,
                                 ops::RowPositions positions = {});

}  // namespace weft
