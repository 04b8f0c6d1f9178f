#include "ops/activation.hpp"

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops {
namespace {

Shape halved(const Tensor& x, const char* op) {
  WEFT_CHECK(x.rank() >= 1 && x.columns() % 2 == 0, "{}: x is {}; its last dimension holds two halves", op,
             describe(x));
  Shape shape = x.shape();
  shape.set(-1, x.columns() / 2);
  return shape;
}

}  // namespace

const char* name_of(Activation activation) {
  for (const ActivationName& row : kActivations) {
    if (row.value == activation) return row.name;
  }
  return "?";
}

Tensor activation(Lane& lane, Activation kind, const Tensor& x) {
  check_floating(x, "activation", "x");
  Tensor y = lane.alloc(x.dtype(), x.shape(), "activation result");
  WEFT_OPS_DISPATCH(lane, activation, kind, x, y);
  return y;
}

Tensor activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x) {
  check_floating(x, "activation_backward", "x");
  check_like(dy, x, "activation_backward", "dy");
  Tensor dx = lane.alloc(x.dtype(), x.shape(), "activation gradient");
  WEFT_OPS_DISPATCH(lane, activation_backward, kind, dy, x, dx);
  return dx;
}

Tensor gated_activation(Lane& lane, Activation kind, const Tensor& x) {
  check_floating(x, "gated_activation", "x");
  Tensor y = lane.alloc(x.dtype(), halved(x, "gated_activation"), "gated_activation result");
  WEFT_OPS_DISPATCH(lane, gated_activation, kind, x, y);
  return y;
}

Tensor gated_activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x) {
  check_floating(x, "gated_activation_backward", "x");
  WEFT_CHECK(dy.dtype() == x.dtype() && dy.shape() == halved(x, "gated_activation_backward"),
             "gated_activation_backward: dy is {} for x {}", describe(dy), describe(x));
  Tensor dx = lane.alloc(x.dtype(), x.shape(), "gated_activation gradient");
  WEFT_OPS_DISPATCH(lane, gated_activation_backward, kind, dy, x, dx);
  return dx;
}

ActivationAgain activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                                 const Tensor& db, float beta) {
  check_floating(x, "activation_again", "x");
  check_like(dy, x, "activation_again", "dy");
  const DType wide = accumulator_of(x.dtype());
  if (db.defined()) check_vector(db, x.columns(), wide, "activation_again", "db");
  const ActivationAgain again{lane.alloc(x.dtype(), x.shape(), "activation gradient"),
                              lane.alloc(x.dtype(), x.shape(), "activation result")};
  const std::int64_t chunks =
      db.defined() ? WEFT_OPS_SIZE(lane, bias_gradient_chunks, x.rows(), x.columns()) : 0;
  const Tensor scratch = lane.alloc(wide, {chunks, x.columns()}, "bias_gradient scratch");
  WEFT_OPS_DISPATCH(lane, activation_again, kind, dy, x, again, db, beta, scratch);
  return again;
}

ActivationAgain gated_activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x) {
  check_floating(x, "gated_activation_again", "x");
  WEFT_CHECK(dy.dtype() == x.dtype() && dy.shape() == halved(x, "gated_activation_again"),
             "gated_activation_again: dy is {} for x {}", describe(dy), describe(x));
  const ActivationAgain again{lane.alloc(x.dtype(), x.shape(), "gated_activation gradient"),
                              lane.alloc(x.dtype(), dy.shape(), "gated_activation result")};
  WEFT_OPS_DISPATCH(lane, gated_activation_again, kind, dy, x, again);
  return again;
}

}  // namespace weft::ops
