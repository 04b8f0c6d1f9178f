#include "nn/fused_head.hpp"

#include <algorithm>

#include "ops/elementwise.hpp"
#include "ops/gemm.hpp"

namespace weft::nn {

void FusedHead::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  if (!mb.saved.keeps()) return whole_.forward(lane, x, mb);
  const Param& weight = whole_.weight();
  const std::int64_t s = x.dim(0), b = x.dim(1);
  const std::int64_t piece = std::clamp<std::int64_t>(rows_ / b, 1, (s + 1) / 2);
  const Tensor dx = lane.alloc(x.dtype(), x.shape(), "output layer dx");
  const Tensor losses = lane.alloc(accumulator_of(x.dtype()), {s * b}, "losses");
  float beta = weight.beta();
  for (std::int64_t begin = 0; begin < s; begin += piece) {
    const std::int64_t count = std::min(piece, s - begin);
    const Tensor rows = x.slice(begin, count);
    const Tensor logits = ops::gemm_nt(lane, rows, weight.weight());
    const ops::CrossEntropyResult result = ops::cross_entropy_fused(
        lane, logits, mb.batch.labels.slice_columns(begin, count), whole_.options(), mb.loss_scale);
    ops::copy(lane, result.losses, losses.slice(begin * b, count * b));
    ops::gemm_nn_into(lane, logits, weight.weight(), dx.slice(begin, count));
    if (!weight.trains()) continue;
    ops::gemm_tn_accumulate(lane, logits, rows, weight.main_grad(), beta);
    beta = 1;
  }
  weight.ready();
  mb.losses = losses;
  mb.saved.push(Saved{dx});
}

Async<Tensor> FusedHead::backward(Lane&, Microbatch& mb) const {
  return Async<Tensor>(mb.saved.pop<Saved>().dx);
}

}  // namespace weft::nn
