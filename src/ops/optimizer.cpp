#include "ops/optimizer.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

void check_flat(const Tensor& t, std::int64_t elems, DType dtype, const char* op, const char* name) {
  WEFT_CHECK(t.defined() && t.dtype() == dtype && t.contiguous() && t.elems() >= elems,
             "{}: {} is {}, expected {} or more contiguous {}", op, name, describe(t), elems, name_of(dtype));
}

// Master, gradient and weight.
void check_update(const FlatPieces& pieces, const Tensor& master, const Tensor& gradient,
                  const Tensor& weight, const char* op) {
  WEFT_CHECK(master.defined() && (master.dtype() == DType::kF32 || master.dtype() == DType::kF64),
             "{}: master is {}, expected F32 or F64", op, describe(master));
  check_flat(master, pieces.owned_end(), master.dtype(), op, "master");
  check_flat(gradient, pieces.offset_end(), master.dtype(), op, "gradient");
  check_floating(weight, op, "weight");
  check_flat(weight, pieces.offset_end(), weight.dtype(), op, "weight");
}

}  // namespace

void adamw(Lane& lane, const AdamWStep& step, const FlatPieces& pieces, const AdamWTensors& t) {
  check_update(pieces, t.master, t.gradient, t.weight, "adamw");
  check_flat(t.exp_avg, pieces.owned_end(), t.master.dtype(), "adamw", "exp_avg");
  check_flat(t.exp_avg_sq, pieces.owned_end(), t.master.dtype(), "adamw", "exp_avg_sq");
  WEFT_CHECK(step.t >= 1, "adamw: t = {}; the first update has t = 1", step.t);
  WEFT_OPS_DISPATCH(lane, adamw, step, pieces, t);
}

void sgd(Lane& lane, const SgdStep& step, const FlatPieces& pieces, const SgdTensors& t) {
  check_update(pieces, t.master, t.gradient, t.weight, "sgd");
  if (t.buffer.defined() || step.momentum != 0)
    check_flat(t.buffer, pieces.owned_end(), t.master.dtype(), "sgd", "buffer");
  WEFT_OPS_DISPATCH(lane, sgd, step, pieces, t);
}

}  // namespace weft::ops
