#include "ops/elementwise.hpp"

#include <memory>

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {

void fill(Lane& lane, const Tensor& x, double value) {
  WEFT_CHECK(x.defined(), "fill: x is undefined");
  WEFT_OPS_DISPATCH(lane, fill, x, value);
}

void copy(Lane& lane, const Tensor& from, const Tensor& to) {
  WEFT_CHECK(from.defined() && to.defined() && from.shape() == to.shape(), "copy: {} to {}", describe(from),
             describe(to));
  WEFT_OPS_DISPATCH(lane, copy, from, to);
}

void fill_on_host(Lane& lane, const Tensor& x, const std::function<void(const Tensor& host)>& fill) {
  if (x.device().kind == DeviceKind::kCpu) return fill(x);
  const auto memory = std::make_unique<std::byte[]>(x.bytes());
  const Tensor host = Tensor::borrow(memory.get(), x.dtype(), x.shape());
  fill(host);
  copy(lane, host, x);
}

void upload(Lane& lane, const Tensor& from, const Tensor& to) {
  WEFT_CHECK(from.defined() && to.defined() && from.shape() == to.shape() && from.dtype() == to.dtype() &&
                 from.contiguous() && to.contiguous(),
             "upload: {} to {}", describe(from), describe(to));
  WEFT_OPS_DISPATCH(lane, upload, from, to);
}

Tensor cast(Lane& lane, const Tensor& x, DType dtype, const char* what) {
  WEFT_CHECK(x.defined(), "cast: x is undefined");
  Tensor y = lane.alloc(dtype, x.shape(), what);
  copy(lane, x, y);
  return y;
}

void add_in_place(Lane& lane, const Tensor& x, const Tensor& y) {
  check_floating(x, "add_in_place", "x");
  check_floating(y, "add_in_place", "y");
  WEFT_CHECK(x.shape() == y.shape(), "add_in_place: {} and {}", describe(x), describe(y));
  WEFT_OPS_DISPATCH(lane, add_in_place, x, y);
}

void scale_in_place(Lane& lane, const Tensor& x, double factor) {
  check_floating(x, "scale_in_place", "x");
  WEFT_OPS_DISPATCH(lane, scale_in_place, x, factor);
}

void sum(Lane& lane, const Tensor& x, const Tensor& out) {
  check_floating(x, "sum", "x");
  check_vector(out, 1, DType::kF64, "sum", "out");
  const Tensor partial = lane.alloc(DType::kF64, {(x.elems() + 4095) / 4096}, "partial sums");
  WEFT_OPS_DISPATCH(lane, sum, x, partial, out);
}

std::int64_t find_nonfinite(Lane& lane, const Tensor& x) {
  check_floating(x, "find_nonfinite", "x");
  std::int64_t index = -1;
  const Tensor found = lane.alloc(DType::kI64, {1}, "index");
  WEFT_OPS_DISPATCH(lane, find_nonfinite, x, found, index);
  return index;
}

}  // namespace weft::ops
