#include "nn/moe/grouped_experts.hpp"

#include "ops/moe.hpp"

namespace weft::nn {

Tensor GroupedExperts::forward(Lane& lane, const Tensor& x, const Tensor& weights, const Tensor& offsets,
                               Microbatch& mb) const {
  const Tensor h = ops::grouped_gemm_nt(lane, x, fc1_.weight(), offsets);
  mb.saved.push(Saved{kept_input(x, fc1_), h, weights, offsets});
  return ops::grouped_gemm_nt(lane, ops::scaled_activation(lane, kind_, gated_, h, weights), fc2_.weight(),
                              offsets);
}

GroupedExperts::Gradients GroupedExperts::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  Saved saved = mb.saved.pop<Saved>();
  ops::ScaledActivationGradient d = ops::scaled_activation_backward(
      lane, kind_, gated_, ops::grouped_gemm_nn(lane, dy, fc2_.weight(), saved.offsets), saved.h,
      saved.weights);
  Tensor dx = ops::grouped_gemm_nn(lane, d.dx, fc1_.weight(), saved.offsets);
  if (fc1_.trains() || fc2_.trains()) {
    mb.later.push(*this, Pending{std::move(saved.x), std::move(d.dx), std::move(d.y), dy, saved.offsets});
  }
  return {std::move(dx), std::move(d.dscale)};
}

void GroupedExperts::weight_grad(Lane& lane, Pending pending) const {
  fc2_.contribute([&](const Tensor& gradient, float beta) {
    ops::grouped_gemm_tn_accumulate(lane, pending.dy, pending.a, pending.offsets, gradient, beta);
  });
  fc1_.contribute([&](const Tensor& gradient, float beta) {
    ops::grouped_gemm_tn_accumulate(lane, pending.dh, pending.x, pending.offsets, gradient, beta);
  });
}

}  // namespace weft::nn
