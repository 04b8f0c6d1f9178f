#include "nn/embedding.hpp"

#include "ops/dropout.hpp"
#include "ops/embedding.hpp"

namespace weft::nn {

ops::DropoutSite Embedding::site(const Microbatch& mb, std::int64_t rows) const {
  return {.p = p_,
          .key = mb.dropout_key.with(site_),
          .sample_ids = mb.batch.sample_ids,
          .tokens = border_.positions_outside(rows)};
}

Tensor Embedding::forward(Lane& lane, Microbatch& mb) const {
  const Tensor partial = ops::embedding(lane, mb.batch.tokens, words_.weight(), first_row_);
  const Tensor x = border_.combine(lane, partial).wait(lane);
  positions_->add(lane, x, mb);
  if (p_ == 0) return x;
  return ops::bias_dropout_add(lane, x, Tensor(), Tensor(), site(mb, x.dim(0)));
}

void Embedding::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  const Tensor dx = ops::dropout_backward(lane, dy, site(mb, dy.dim(0)));
  positions_->backward(lane, dx, mb);
  words_.contribute([&](const Tensor& gradient, float beta) {
    const Tensor dx_full = border_.spread(lane, dx).wait(lane);
    ops::embedding_backward(lane, dx_full, mb.batch.tokens, gradient, first_row_, beta);
  });
}

}  // namespace weft::nn
