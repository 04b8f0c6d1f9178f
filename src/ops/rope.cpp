#include "ops/rope.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {

void rope_in_place(Lane& lane, const Tensor& x, const RopeTable& table, const Tensor& positions, int head_dim,
                   bool inverse) {
  check_floating(x, "rope", "x");
  const DType wide = accumulator_of(x.dtype());
  WEFT_CHECK(table.cos.defined() && table.sin.defined() && table.cos.shape() == table.sin.shape() &&
                 table.cos.rank() == 2 && table.cos.dtype() == wide && table.sin.dtype() == wide,
             "rope: cos {} and sin {} for x {}", describe(table.cos), describe(table.sin), describe(x));
  WEFT_CHECK(
      x.rank() == 3 && head_dim > 0 && x.columns() % head_dim == 0 && 2 * table.cos.columns() <= head_dim,
      "rope: x {}, head_dim {}, table {}", describe(x), head_dim, describe(table.cos));
  WEFT_CHECK(!positions.defined() || (positions.dtype() == DType::kI32 && positions.contiguous() &&
                                      positions.shape() == Shape({x.dim(0), x.dim(1)})),
             "rope: positions {} for x {}", describe(positions), describe(x));
  WEFT_CHECK(positions.defined() || table.cos.dim(0) >= x.dim(0), "rope: table {} for x {}",
             describe(table.cos), describe(x));
  WEFT_OPS_DISPATCH(lane, rope_in_place, x, table, positions, head_dim, inverse);
}

}  // namespace weft::ops
