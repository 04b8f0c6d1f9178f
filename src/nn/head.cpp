#include "nn/head.hpp"

#include "ops/elementwise.hpp"
#include "ops/gemm.hpp"

namespace weft::nn {

Tensor LanguageModelHead::logits(Lane& lane, const Tensor& x) const {
  return ops::gemm_nt(lane, border_.spread(lane, x).wait(lane), weight_.weight());
}

void LanguageModelHead::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  Tensor y = logits(lane, x);
  const ops::CrossEntropyLocal local = ops::cross_entropy_local(lane, y, mb.batch.labels, options_);
  Communicator& tp = border_.tp();
  // The reduction is in place and rescaling needs both maxima: reduce a copy.
  const Tensor max = lane.alloc(local.max.dtype(), local.max.shape(), "loss maximum");
  ops::copy(lane, local.max, max);
  tp.all_reduce(lane, max, ReduceOp::kMax).wait(lane);
  ops::cross_entropy_rescale(lane, local, max);
  tp.all_reduce(lane, local.sums).wait(lane);
  ops::CrossEntropyResult result =
      ops::cross_entropy_finish(lane, max, local.sums, mb.batch.labels, options_);
  mb.losses = std::move(result.losses);
  mb.saved.push(Saved{kept_input(x, weight_), std::move(y), std::move(result.lse)});
}

Async<Tensor> LanguageModelHead::backward(Lane& lane, Microbatch& mb) const {
  auto [x, y, lse] = mb.saved.pop<Saved>();
  ops::cross_entropy_backward(lane, y, lse, mb.batch.labels, options_, mb.loss_scale);
  const Tensor dx_full = ops::gemm_nn(lane, y, weight_.weight());
  if (weight_.trains()) mb.later.push(*this, Pending{std::move(y), std::move(x)});
  return border_.combine(lane, dx_full);
}

void LanguageModelHead::weight_grad(Lane& lane, Pending pending) const {
  const Tensor x_full = border_.spread(lane, pending.x).wait(lane);
  weight_.contribute([&](const Tensor& gradient, float beta) {
    ops::gemm_tn_accumulate(lane, pending.dlogits, x_full, gradient, beta);
  });
}

}  // namespace weft::nn
