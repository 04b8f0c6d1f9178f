// The same channels of every head. In y [s, b, heads · head_dim] they are columns [first, first + d) of each
// head.
#pragma once

#include "core/lane.hpp"

namespace weft::ops {

// Those channels of every head := x [s, b, d].
void copy_to_heads(Lane& lane, const Tensor& x, const Tensor& y, std::int64_t head_dim, std::int64_t first);
// Its derivative: x [s, b, d] := the sum over heads of those channels, in the order of heads, in the
// accumulator type.
void sum_of_heads(Lane& lane, const Tensor& y, std::int64_t head_dim, std::int64_t first, const Tensor& x);

}  // namespace weft::ops
