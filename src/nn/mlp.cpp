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

}  // namespace weft::nn
