#include "nn/attention/self_attention.hpp"

namespace weft::nn {

SelfAttention::Parts SelfAttention::split(const Tensor& qkv) const {
  const std::int64_t q = counts_.heads * counts_.head_dim;
  const std::int64_t kv = counts_.groups * counts_.head_dim;
  return {qkv.slice_columns(0, q + kv), qkv.slice_columns(0, q), qkv.slice_columns(q, kv),
          qkv.slice_columns(q + kv, kv)};
}

Tensor SelfAttention::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  Tensor context;
  {
    const Parts parts = split(qkv_->forward(lane, x, mb));
    norms_->apply(lane, parts.q, parts.k, mb);
    rotation_->apply(lane, parts.qk, mb);
    context = core_->forward(lane, parts.q, parts.k, parts.v, mb);
  }
  return proj_->forward(lane, context, mb);
}

Tensor SelfAttention::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  Tensor dcontext = input_gradient(lane, *proj_, dy, mb);
  const Tensor dqkv =
      lane.alloc(dcontext.dtype(),
                 {dcontext.dim(0), dcontext.dim(1), (counts_.heads + 2 * counts_.groups) * counts_.head_dim},
                 "attention dqkv");
  const Parts parts = split(dqkv);
  core_->backward(lane, dcontext, parts.q, parts.k, parts.v, mb);
  dcontext = Tensor();
  rotation_->apply_backward(lane, parts.qk, mb);
  norms_->apply_backward(lane, parts.q, parts.k, mb);
  return input_gradient(lane, *qkv_, dqkv, mb);
}

}  // namespace weft::nn
