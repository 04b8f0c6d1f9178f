#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/moe.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

// [n, k] i32
void check_pairs(const Tensor& pairs, const char* op, const char* name) {
  WEFT_CHECK(pairs.defined() && pairs.dtype() == DType::kI32 && pairs.rank() == 2 && pairs.contiguous(),
             "{}: {} are {}", op, name, describe(pairs));
}

}  // namespace

ExpertOrder expert_order(Lane& lane, const Tensor& experts, std::int64_t num_experts,
                         std::int64_t padded_to) {
  check_pairs(experts, "expert_order", "experts");
  WEFT_CHECK(num_experts >= 1 && padded_to >= 0, "expert_order: {} experts padded to {} rows", num_experts,
             padded_to);
  ExpertOrder order{lane.alloc(DType::kI32, experts.shape(), "rows of tokens"),
                    lane.alloc(DType::kI32, {num_experts + 1}, "rows of experts")};
  const Tensor scratch = lane.alloc(
      DType::kU8, {WEFT_OPS_SIZE(lane, expert_order_scratch, experts, num_experts)}, "expert_order scratch");
  WEFT_OPS_DISPATCH(lane, expert_order, experts, padded_to, order, scratch);
  return order;
}

Tensor own_experts(Lane& lane, const Tensor& experts, std::int64_t first, std::int64_t count) {
  check_pairs(experts, "own_experts", "experts");
  WEFT_CHECK(first >= 0 && count >= 0, "own_experts: {} experts from {}", count, first);
  Tensor own = lane.alloc(DType::kI32, experts.shape(), "own experts");
  WEFT_OPS_DISPATCH(lane, own_experts, experts, first, count, own);
  return own;
}

void spread_rows(Lane& lane, const Tensor& x, const Tensor& rows, const Tensor& out) {
  check_floating(x, "spread_rows", "x");
  check_pairs(rows, "spread_rows", "rows");
  WEFT_CHECK(x.rank() == 2 && x.dim(0) == rows.dim(0) && out.defined() && out.rank() == 2 &&
                 out.dim(1) == x.dim(1) && out.dtype() == x.dtype(),
             "spread_rows: x {}, rows {}, out {}", describe(x), describe(rows), describe(out));
  const Tensor scratch =
      lane.alloc(DType::kU8, {WEFT_OPS_SIZE(lane, spread_rows_scratch, out)}, "spread_rows scratch");
  WEFT_OPS_DISPATCH(lane, spread_rows, x, rows, out, scratch);
}

Tensor collect_rows(Lane& lane, const Tensor& y, const Tensor& rows) {
  check_floating(y, "collect_rows", "y");
  check_pairs(rows, "collect_rows", "rows");
  WEFT_CHECK(y.rank() == 2, "collect_rows: y is {}", describe(y));
  Tensor x = lane.alloc(y.dtype(), {rows.dim(0), y.dim(1)}, "tokens from experts");
  WEFT_OPS_DISPATCH(lane, collect_rows, y, rows, x);
  return x;
}

void spread_values(Lane& lane, const Tensor& values, const Tensor& rows, const Tensor& out) {
  check_floating(values, "spread_values", "values");
  check_pairs(rows, "spread_values", "rows");
  WEFT_CHECK(values.shape() == rows.shape() && values.contiguous(), "spread_values: values {}, rows {}",
             describe(values), describe(rows));
  WEFT_CHECK(out.defined() && out.rank() == 1 && out.dtype() == values.dtype(),
             "spread_values: out {} for values {}", describe(out), describe(values));
  WEFT_OPS_DISPATCH(lane, spread_values, values, rows, out);
}

Tensor collect_values(Lane& lane, const Tensor& y, const Tensor& rows) {
  check_floating(y, "collect_values", "y");
  check_pairs(rows, "collect_values", "rows");
  WEFT_CHECK(y.rank() == 1, "collect_values: y is {}", describe(y));
  Tensor values = lane.alloc(y.dtype(), rows.shape(), "values from experts");
  WEFT_OPS_DISPATCH(lane, collect_values, y, rows, values);
  return values;
}

}  // namespace weft::ops
