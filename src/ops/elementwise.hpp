// Casts, copies and sums.
#pragma once

#include "core/lane.hpp"

namespace weft::ops {

void fill(Lane& lane, const Tensor& x, double value);
// Same shape; converts dtype; either side may be strided.
void copy(Lane& lane, const Tensor& from, const Tensor& to);
Tensor cast(Lane& lane, const Tensor& x, DType dtype, const char* what);
// x += y, in x's dtype (summed in the accumulator type).
void add_in_place(Lane& lane, const Tensor& x, const Tensor& y);
// x *= factor
void scale_in_place(Lane& lane, const Tensor& x, double factor);
// out [1] f64 = Σ x, Σ x²: pieces of 4096 elements in order, each summed in f64; the same for any number of
// workers.
void sum(Lane& lane, const Tensor& x, const Tensor& out);
void sum_of_squares(Lane& lane, const Tensor& x, const Tensor& out);
// The flat index of the first NaN or infinity, or −1.
std::int64_t find_nonfinite(Lane& lane, const Tensor& x);

}  // namespace weft::ops
