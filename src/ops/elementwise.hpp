// Casts, copies and sums.
#pragma once

#include <functional>
#include <vector>

#include "core/lane.hpp"

namespace weft::ops {

void fill(Lane& lane, const Tensor& x, double value);
// Same shape; converts dtype; either side may be strided. On a device's lane either side may be host memory:
// then it returns when the copy is done.
void copy(Lane& lane, const Tensor& from, const Tensor& to);
// The elements of x in host memory, after everything that the lane has been given before; zeros on a meta
// lane.
template <class T>
std::vector<T> to_host(Lane& lane, const Tensor& x) {
  std::vector<T> values(static_cast<std::size_t>(x.elems()));
  copy(lane, x, Tensor::borrow(values.data(), dtype_of<T>(), x.shape()));
  return values;
}
// Calls fill(x) where x lies in host memory; where it does not, fill gets host memory of its shape, and x a
// copy of what that then holds.
void fill_on_host(Lane& lane, const Tensor& x, const std::function<void(const Tensor& host)>& fill);
// What from_host does, of whole tensors of the same shape and dtype.
void upload(Lane& lane, const Tensor& from, const Tensor& to);
// From host memory that may be used again at once; on a device's lane it does not wait for the device.
// `to` is contiguous.
template <class T>
void from_host(Lane& lane, const std::vector<T>& values, const Tensor& to) {
  upload(lane, Tensor::borrow(const_cast<T*>(values.data()), dtype_of<T>(), to.shape()), to);
}
Tensor cast(Lane& lane, const Tensor& x, DType dtype, const char* what);
// x += y, in x's dtype (summed in the accumulator type).
void add_in_place(Lane& lane, const Tensor& x, const Tensor& y);
// x *= factor
void scale_in_place(Lane& lane, const Tensor& x, double factor);
// out [1] f64 = Σ x: pieces of 4096 elements in order, each summed in f64; the same for any number of
// workers.
void sum(Lane& lane, const Tensor& x, const Tensor& out);
// The flat index of the first NaN or infinity, or −1.
std::int64_t find_nonfinite(Lane& lane, const Tensor& x);

}  // namespace weft::ops
