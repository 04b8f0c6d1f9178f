// Checks that the fronts share.
#pragma once

#include <string>

#include "core/tensor.hpp"

namespace weft::ops {

// "BF16 [8, 2, 64]"
inline std::string describe(const Tensor& x) {
  if (!x.defined()) return "(undefined)";
  return fmt::format("{} {}{}", name_of(x.dtype()), to_string(x.shape()), x.contiguous() ? "" : " strided");
}

inline void check_floating(const Tensor& x, const char* op, const char* name) {
  WEFT_CHECK(x.defined() && is_floating(x.dtype()), "{}: {} is {}", op, name, describe(x));
}

// y is floating, of x's shape and dtype.
inline void check_like(const Tensor& y, const Tensor& x, const char* op, const char* name) {
  WEFT_CHECK(y.defined() && y.shape() == x.shape() && y.dtype() == x.dtype(), "{}: {} is {}, expected {}", op,
             name, describe(y), describe(x));
}

// A contiguous vector of n elements.
inline void check_vector(const Tensor& v, std::int64_t n, DType dtype, const char* op, const char* name) {
  WEFT_CHECK(v.defined() && v.elems() == n && v.dtype() == dtype && v.contiguous(),
             "{}: {} is {}, expected {} [{}]", op, name, describe(v), name_of(dtype), n);
}

}  // namespace weft::ops
