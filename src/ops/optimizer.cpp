#include "ops/optimizer.hpp"

#include "ops/checks.hpp"
#include "ops/cpu/kernels.hpp"
#include "ops/dispatch.hpp"

namespace weft::ops {
namespace {

void check_weight(const Tensor& master, const Tensor& weight, const char* op) {
  WEFT_CHECK(master.defined() && (master.dtype() == DType::kF32 || master.dtype() == DType::kF64) &&
                 master.contiguous(),
             "{}: master is {}, expected contiguous F32 or F64", op, describe(master));
  check_floating(weight, op, "weight");
  WEFT_CHECK(weight.elems() == master.elems() && weight.contiguous(), "{}: weight is {} for master {}", op,
             describe(weight), describe(master));
}

}  // namespace

void adamw(Lane& lane, const AdamWStep& step, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const Tensor& weight) {
  check_weight(master, weight, "adamw");
  check_vector(exp_avg, master.elems(), master.dtype(), "adamw", "exp_avg");
  check_vector(exp_avg_sq, master.elems(), master.dtype(), "adamw", "exp_avg_sq");
  check_vector(grad, master.elems(), master.dtype(), "adamw", "grad");
  WEFT_CHECK(step.t >= 1, "adamw: t = {}; the first update has t = 1", step.t);
  WEFT_OPS_DISPATCH(lane, adamw, step, master, exp_avg, exp_avg_sq, grad, weight);
}

void sgd(Lane& lane, const SgdStep& step, const Tensor& master, const Tensor& buffer, const Tensor& grad,
         const Tensor& weight) {
  check_weight(master, weight, "sgd");
  check_vector(grad, master.elems(), master.dtype(), "sgd", "grad");
  if (buffer.defined() || step.momentum != 0)
    check_vector(buffer, master.elems(), master.dtype(), "sgd", "buffer");
  WEFT_OPS_DISPATCH(lane, sgd, step, master, buffer, grad, weight);
}

}  // namespace weft::ops
