#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/moe.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

// Of y.
Shape result_of(const Tensor& x, bool gated, const Tensor& scale, const char* op) {
  check_floating(x, op, "x");
  WEFT_CHECK(x.rank() == 2 && (!gated || x.dim(1) % 2 == 0), "{}: x is {}", op, describe(x));
  check_vector(scale, x.dim(0), accumulator_of(x.dtype()), op, "scale");
  return {x.dim(0), gated ? x.dim(1) / 2 : x.dim(1)};
}

}  // namespace

Tensor scaled_activation(Lane& lane, Activation kind, bool gated, const Tensor& x, const Tensor& scale) {
  Tensor y =
      lane.alloc(x.dtype(), result_of(x, gated, scale, "scaled_activation"), "scaled_activation result");
  WEFT_OPS_DISPATCH(lane, scaled_activation, kind, gated, x, scale, y);
  return y;
}

ScaledActivationGradient scaled_activation_backward(Lane& lane, Activation kind, bool gated, const Tensor& dy,
                                                    const Tensor& x, const Tensor& scale) {
  const Shape shape = result_of(x, gated, scale, "scaled_activation_backward");
  WEFT_CHECK(dy.defined() && dy.dtype() == x.dtype() && dy.shape() == shape,
             "scaled_activation_backward: dy is {} for x {}", describe(dy), describe(x));
  ScaledActivationGradient gradient{lane.alloc(x.dtype(), x.shape(), "scaled_activation gradient"),
                                    lane.alloc(scale.dtype(), {x.dim(0)}, "gradient of scale"),
                                    lane.alloc(x.dtype(), shape, "scaled_activation result")};
  WEFT_OPS_DISPATCH(lane, scaled_activation_backward, kind, gated, dy, x, scale, gradient);
  return gradient;
}

}  // namespace weft::ops
