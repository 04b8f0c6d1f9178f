#include "nn/mlp.hpp"

namespace weft::nn {

Tensor PlainActivation::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  mb.saved.push(Saved{x});
  return ops::activation(lane, kind_, x);
}

Tensor PlainActivation::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  const auto [x] = mb.saved.pop<Saved>();
  return ops::activation_backward(lane, kind_, dy, x);
}

Tensor GatedActivation::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  mb.saved.push(Saved{x});
  return ops::gated_activation(lane, kind_, x);
}

Tensor GatedActivation::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  const auto [x] = mb.saved.pop<Saved>();
  return ops::gated_activation_backward(lane, kind_, dy, x);
}

Tensor Mlp::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  return fc2_->forward(lane, activation_->forward(lane, fc1_->forward(lane, x, mb), mb), mb);
}

Tensor Mlp::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  const Tensor dfc1 = activation_->backward(lane, input_gradient(lane, *fc2_, dy, mb), mb);
  return input_gradient(lane, *fc1_, dfc1, mb);
}

Tensor ActivationAgainMlp::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  Tensor h = fc1_->forward(lane, x, mb);
  const Tensor a = gated_ ? ops::gated_activation(lane, kind_, h) : ops::activation(lane, kind_, h);
  mb.saved.push(Saved{std::move(h)});
  return fc2_->product(lane, a);
}

Tensor ActivationAgainMlp::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  RowParallelLinear::InputGradient fc2 = fc2_->input_gradient(lane, dy);
  ops::ActivationAgain again;
  {
    const Tensor h = mb.saved.pop<Saved>().h;
    if (gated_) {
      again = ops::gated_activation_again(lane, kind_, fc2.dx, h);
    } else if (fc1_bias_ != nullptr && fc1_bias_->trains()) {
      fc1_bias_->contribute([&](const Tensor& gradient, float beta) {
        again = ops::activation_again(lane, kind_, fc2.dx, h, gradient, beta);
      });
    } else {
      again = ops::activation_again(lane, kind_, fc2.dx, h);
    }
    fc2.dx = Tensor();
  }
  fc2_->defer(mb, std::move(fc2.dy), std::move(again.y));
  mb.later.reached(lane, DrainPoint::kLinear);
  return input_gradient(lane, *fc1_, again.dx, mb);
}

}  // namespace weft::nn
