// Table look-ups. Ids are i32 [b, s] as they come from the data; activations are [s, b, h].
#pragma once

#include "core/lane.hpp"

namespace weft::ops {

// y [s, b, h] = table rows; table [rows, h] holds rows [first_row, first_row + rows) of the global table
// (vocabulary parallel); ids outside it, and negative ones, give zeros.
Tensor embedding(Lane& lane, const Tensor& ids, const Tensor& table, std::int64_t first_row);
// dtable [rows, h] (accumulator type) = beta · dtable + scatter of dy, summed in order of (s, b):
// deterministic.
void embedding_backward(Lane& lane, const Tensor& dy, const Tensor& ids, const Tensor& dtable,
                        std::int64_t first_row, float beta);

// x [s, b, h] += table [positions, h] at row first_position + index in s (learned absolute positions), in
// place.
void add_positions(Lane& lane, const Tensor& x, const Tensor& table, std::int64_t first_position);
// dtable = beta · dtable + sums of dy over b; rows without a position get beta · old.
void add_positions_backward(Lane& lane, const Tensor& dy, const Tensor& dtable, std::int64_t first_position,
                            float beta);

}  // namespace weft::ops
