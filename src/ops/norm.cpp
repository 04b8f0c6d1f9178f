#include "ops/norm.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

NormResult forward(Lane& lane, const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   double eps, bool centred) {
  check_floating(x, op, "x");
  check_vector(weight, x.columns(), x.dtype(), op, "weight");
  if (centred) check_vector(bias, x.columns(), x.dtype(), op, "bias");
  NormResult result;
  const DType statistics = accumulator_of(x.dtype());
  result.y = lane.alloc(x.dtype(), x.shape(), "norm result");
  if (centred) result.mean = lane.alloc(statistics, {x.rows()}, "norm mean");
  result.rstd = lane.alloc(statistics, {x.rows()}, "norm rstd");
  WEFT_OPS_DISPATCH(lane, norm, x, weight, bias, eps, result);
  return result;
}

Tensor backward(Lane& lane, const char* op, const Tensor& dy, const Tensor& x, const Tensor& weight,
                const Tensor& mean, const Tensor& rstd, const Tensor& dresidual,
                const NormGradients& gradients, bool centred) {
  check_floating(x, op, "x");
  check_like(dy, x, op, "dy");
  if (dresidual.defined()) check_like(dresidual, x, op, "dresidual");
  const DType wide = accumulator_of(x.dtype());
  check_vector(weight, x.columns(), x.dtype(), op, "weight");
  check_vector(rstd, x.rows(), wide, op, "rstd");
  if (centred) check_vector(mean, x.rows(), wide, op, "mean");
  if (gradients.weight.defined()) check_vector(gradients.weight, x.columns(), wide, op, "weight gradient");
  if (gradients.bias.defined()) check_vector(gradients.bias, x.columns(), wide, op, "bias gradient");
  Tensor dx = lane.alloc(x.dtype(), x.shape(), "norm gradient");
  const Tensor scratch = lane.alloc(
      wide,
      {(centred ? 2 : 1) * WEFT_OPS_SIZE(lane, norm_backward_chunks, x.rows(), x.columns()), x.columns()},
      "norm scratch");
  WEFT_OPS_DISPATCH(lane, norm_backward, dy, x, weight, mean, rstd, dresidual, gradients, dx, scratch);
  return dx;
}

}  // namespace

NormResult rms_norm(Lane& lane, const Tensor& x, const Tensor& weight, double eps) {
  return forward(lane, "rms_norm", x, weight, {}, eps, false);
}

Tensor rms_norm_backward(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const Tensor& rstd, const Tensor& dresidual, const NormGradients& gradients) {
  return backward(lane, "rms_norm_backward", dy, x, weight, {}, rstd, dresidual, gradients, false);
}

NormResult layer_norm(Lane& lane, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return forward(lane, "layer_norm", x, weight, bias, eps, true);
}

Tensor layer_norm_backward(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& weight,
                           const Tensor& mean, const Tensor& rstd, const Tensor& dresidual,
                           const NormGradients& gradients) {
  return backward(lane, "layer_norm_backward", dy, x, weight, mean, rstd, dresidual, gradients, true);
}

}  // namespace weft::ops
