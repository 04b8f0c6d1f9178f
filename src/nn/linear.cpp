#include "nn/linear.hpp"

#include "ops/gemm.hpp"

namespace weft::nn {

Tensor ColumnParallelLinear::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const Tensor x_full = border_.spread(lane, x).wait(lane);
  mb.saved.push(Saved{kept_input(x, weight_)});
  return ops::gemm_nt(lane, x_full, weight_.weight(), bias_ != nullptr ? bias_->weight() : Tensor());
}

Async<Tensor> ColumnParallelLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  return backward_of(lane, dy, mb.saved.pop<Saved>().x, mb);
}

Async<Tensor> ColumnParallelLinear::backward_of(Lane& lane, const Tensor& dy, Tensor x,
                                                Microbatch& mb) const {
  const Tensor dx_full = ops::gemm_nn(lane, dy, weight_.weight());
  if (trains(weight_, trained_bias_)) mb.later.push(*this, Pending{dy, std::move(x)});
  return border_.combine(lane, dx_full);  // rides under the weight gradient, or whatever runs next
}

void ColumnParallelLinear::weight_grad(Lane& lane, Pending pending) const {
  weight_.contribute([&](const Tensor& gradient, float beta) {
    const Tensor x_full = border_.spread(lane, pending.x).wait(lane);
    ops::gemm_tn_accumulate(lane, pending.dy, x_full, gradient, beta);
  });
  if (trained_bias_ == nullptr) return;
  trained_bias_->contribute(
      [&](const Tensor& gradient, float beta) { ops::bias_gradient(lane, pending.dy, gradient, beta); });
}

Tensor RowParallelLinear::product(Lane& lane, const Tensor& x) const {
  return border_.combine(lane, ops::gemm_nt(lane, x, weight_.weight())).wait(lane);
}

RowParallelLinear::InputGradient RowParallelLinear::input_gradient(Lane& lane, const Tensor& dy) const {
  const Tensor dy_full = border_.spread(lane, dy).wait(lane);
  return {ops::gemm_nn(lane, dy_full, weight_.weight()), gathers_again_ ? dy : dy_full};
}

void RowParallelLinear::defer(Microbatch& mb, Tensor dy, Tensor x) const {
  if (weight_.trains()) mb.later.push(*this, Pending{std::move(dy), std::move(x)});
}

Tensor RowParallelLinear::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  mb.saved.push(Saved{kept_input(x, weight_)});
  return product(lane, x);
}

Async<Tensor> RowParallelLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  auto [x] = mb.saved.pop<Saved>();
  InputGradient gradient = input_gradient(lane, dy);
  defer(mb, std::move(gradient.dy), std::move(x));
  return Async<Tensor>(std::move(gradient.dx));
}

void RowParallelLinear::weight_grad(Lane& lane, Pending pending) const {
  const Tensor dy_full = gathers_again_ ? border_.spread(lane, pending.dy).wait(lane) : pending.dy;
  weight_.contribute([&](const Tensor& gradient, float beta) {
    ops::gemm_tn_accumulate(lane, dy_full, pending.x, gradient, beta);
  });
}

}  // namespace weft::nn
