#include "model/stage_ends.hpp"

namespace weft {

Tensor EmbeddingEntry::forward(Lane& lane, const Tensor&, Microbatch& mb) const {
  return embedding_.forward(lane, mb);
}

Tensor EmbeddingEntry::backward(Lane& lane, const Tensor& dx, Microbatch& mb) const {
  embedding_.backward(lane, dx, mb);
  return {};
}

Tensor GatedEntry::forward(Lane& lane, const Tensor& received, Microbatch& mb) const {
  gate_.open(lane, block_);
  return inner_->forward(lane, received, mb);
}

Tensor GatedEntry::backward(Lane& lane, const Tensor& dx, Microbatch& mb) const {
  return inner_->backward(lane, dx, mb);
}

Tensor GatedExit::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  for (const int block : blocks_) gate_.open(lane, block);
  return inner_->forward(lane, x, mb);
}

Tensor GatedExit::backward(Lane& lane, const Tensor& received, Microbatch& mb) const {
  return inner_->backward(lane, received, mb);
}

Tensor GatedExit::look(Lane& lane, const Tensor& x, Microbatch& mb) const {
  for (const int block : blocks_) gate_.open(lane, block);
  return inner_->look(lane, x, mb);
}

Tensor LossExit::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  head_->forward(lane, norm_->forward(lane, x, mb), mb);
  return {};
}

Tensor LossExit::backward(Lane& lane, const Tensor&, Microbatch& mb) const {
  Async<Tensor> dhidden = head_->backward(lane, mb);
  mb.later.reached(lane, DrainPoint::kLinear);
  return norm_->backward(lane, dhidden.wait(lane), Tensor(), mb);
}

Tensor LossExit::look(Lane& lane, const Tensor& x, Microbatch& mb) const {
  return head_->logits(lane, norm_->forward(lane, x, mb));
}

}  // namespace weft
