// Rotary position embedding (Su et al. 2021), on q and k where they lie inside packed qkv.
#pragma once

#include "core/lane.hpp"

namespace weft::ops {

struct RopeTable {
  Tensor cos, sin;           // [positions, rotary_dim / 2], f32 (f64 for f64 tensors)
  bool interleaved = false;  // pairs (2i, 2i+1) in place of (i, i + rotary_dim/2)
};

// Rotates, in place, the first rotary_dim channels of each head of x [s, b, heads · head_dim] (may be
// strided). positions [s, b] i32 are rows of the table; undefined: row = index in s. `inverse` rotates back:
// the derivative. A position outside the table is an Error on the CPU; a GPU writes NaN, which is seen later.
void rope_in_place(Lane& lane, const Tensor& x, const RopeTable& table, const Tensor& positions, int head_dim,
                   bool inverse);

}  // namespace weft::ops
