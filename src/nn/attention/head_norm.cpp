#include "nn/attention/head_norm.hpp"

#include "ops/elementwise.hpp"

namespace weft::nn {

// The heads of x [s, b, heads · d] as rows of d: [s, b · heads, d].
Tensor QueryKeyNorms::packed(Lane& lane, const Tensor& x) const {
  const Tensor copy = ops::cast(lane, x, x.dtype(), "heads to normalise");
  return copy.view({x.dim(0), x.dim(1) * x.columns() / head_dim_, head_dim_});
}

void QueryKeyNorms::apply(Lane& lane, const Tensor& q, const Tensor& k, Microbatch& mb) const {
  ops::copy(lane, query_->forward(lane, packed(lane, q), mb).view(q.shape()), q);
  ops::copy(lane, key_->forward(lane, packed(lane, k), mb).view(k.shape()), k);
}

void QueryKeyNorms::apply_backward(Lane& lane, const Tensor& dq, const Tensor& dk, Microbatch& mb) const {
  ops::copy(lane, key_->backward(lane, packed(lane, dk), Tensor(), mb).view(dk.shape()), dk);
  ops::copy(lane, query_->backward(lane, packed(lane, dq), Tensor(), mb).view(dq.shape()), dq);
}

}  // namespace weft::nn
