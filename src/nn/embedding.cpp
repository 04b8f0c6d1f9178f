#include "nn/embedding.hpp"

#include "ops/dropout.hpp"
#include "ops/embedding.hpp"

namespace weft::nn {

Tensor Embedding::forward(Lane& lane, Microbatch& mb) const {
  const Tensor partial = ops::embedding(lane, mb.batch.tokens, words_.weight(), first_row_);
  const Tensor x = border_.combine(lane, partial).wait(lane);
  if (positions_ != nullptr) ops::add_positions(lane, x, positions_->weight(), mb.batch.first_position);
  if (p_ == 0) return x;
  return ops::bias_dropout_add(
      lane, x, Tensor(), Tensor(),
      {.p = p_, .key = mb.dropout_key.with(site_), .sample_ids = mb.batch.sample_ids});
}

void Embedding::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  const Tensor dx = ops::dropout_backward(
      lane, dy, {.p = p_, .key = mb.dropout_key.with(site_), .sample_ids = mb.batch.sample_ids});
  if (positions_ != nullptr) {
    ops::add_positions_backward(lane, dx, positions_->main_grad(), mb.batch.first_position,
                                positions_->beta());
    positions_->ready();
  }
  const Tensor dx_full = border_.spread(lane, dx).wait(lane);
  ops::embedding_backward(lane, dx_full, mb.batch.tokens, words_.main_grad(), first_row_, words_.beta());
  words_.ready();
}

}  // namespace weft::nn
