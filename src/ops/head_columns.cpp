#include "ops/head_columns.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

void check(const Tensor& x, const Tensor& y, std::int64_t head_dim, std::int64_t first, const char* op) {
  check_floating(x, op, "x");
  WEFT_CHECK(y.defined() && y.dtype() == x.dtype() && y.rows() == x.rows() && head_dim > 0 &&
                 y.columns() % head_dim == 0 && first >= 0 && first + x.columns() <= head_dim,
             "{}: x {}, y {}, heads of {} from {}", op, describe(x), describe(y), head_dim, first);
}

}  // namespace

void copy_to_heads(Lane& lane, const Tensor& x, const Tensor& y, std::int64_t head_dim, std::int64_t first) {
  check(x, y, head_dim, first, "copy_to_heads");
  WEFT_OPS_DISPATCH(lane, copy_to_heads, x, y, head_dim, first);
}

void sum_of_heads(Lane& lane, const Tensor& y, std::int64_t head_dim, std::int64_t first, const Tensor& x) {
  check(x, y, head_dim, first, "sum_of_heads");
  WEFT_OPS_DISPATCH(lane, sum_of_heads, y, head_dim, first, x);
}

}  // namespace weft::ops
