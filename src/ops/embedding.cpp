#include "ops/embedding.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

void check_positions(const Tensor& x, const Tensor& table, std::int64_t first_position, DType dtype,
                     const char* op) {
  check_floating(x, op, "x");
  WEFT_CHECK(x.rank() == 3 && table.defined() && table.rank() == 2 && table.columns() == x.columns() &&
                 table.dtype() == dtype && first_position >= 0 && first_position + x.dim(0) <= table.dim(0),
             "{}: positions {} .. {} of table {} for {}", op, first_position, first_position + x.dim(0) - 1,
             describe(table), describe(x));
}

}  // namespace

Tensor embedding(Lane& lane, const Tensor& ids, const Tensor& table, std::int64_t first_row) {
  check_floating(table, "embedding", "table");
  WEFT_CHECK(
      ids.defined() && ids.dtype() == DType::kI32 && ids.rank() == 2 && ids.contiguous() && table.rank() == 2,
      "embedding: ids {}, table {}", describe(ids), describe(table));
  Tensor y = lane.alloc(table.dtype(), {ids.dim(1), ids.dim(0), table.dim(1)}, "embedding result");
  WEFT_OPS_DISPATCH(lane, embedding, ids, table, first_row, y);
  return y;
}

void embedding_backward(Lane& lane, const Tensor& dy, const Tensor& ids, const Tensor& dtable,
                        std::int64_t first_row, float beta) {
  check_floating(dy, "embedding_backward", "dy");
  WEFT_CHECK(ids.defined() && ids.dtype() == DType::kI32 && ids.rank() == 2 && ids.contiguous() &&
                 dtable.defined() && dtable.rank() == 2 && dtable.dtype() == accumulator_of(dy.dtype()) &&
                 dy.shape() == Shape({ids.dim(1), ids.dim(0), dtable.dim(1)}),
             "embedding_backward: dy {}, ids {}, dtable {}", describe(dy), describe(ids), describe(dtable));
  const Tensor scratch = lane.alloc(DType::kU8, {WEFT_OPS_SIZE(lane, embedding_backward_scratch, dy, dtable)},
                                    "embedding_backward scratch");
  WEFT_OPS_DISPATCH(lane, embedding_backward, dy, ids, dtable, first_row, beta, scratch);
}

void add_positions(Lane& lane, const Tensor& x, const Tensor& table, std::int64_t first_position) {
  check_positions(x, table, first_position, x.dtype(), "add_positions");
  WEFT_OPS_DISPATCH(lane, add_positions, x, table, first_position);
}

void add_positions_backward(Lane& lane, const Tensor& dy, const Tensor& dtable, std::int64_t first_position,
                            float beta) {
  check_positions(dy, dtable, first_position, accumulator_of(dy.dtype()), "add_positions_backward");
  WEFT_OPS_DISPATCH(lane, add_positions_backward, dy, dtable, first_position, beta);
}

}  // namespace weft::ops
