#include "model/transformer_layer.hpp"

namespace weft {

Tensor TransformerLayer::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const Tensor attended = slots_.self_attention->forward(lane, slots_.input_norm->forward(lane, x, mb), mb);
  const Tensor middle = slots_.attention_bda->forward(lane, attended, x, mb);
  const Tensor fed = slots_.mlp->forward(lane, slots_.pre_mlp_norm->forward(lane, middle, mb), mb);
  return slots_.mlp_bda->forward(lane, fed, middle, mb);
}

Tensor TransformerLayer::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  Tensor dmiddle;
  {
    const Tensor dnormed = slots_.mlp->backward(lane, slots_.mlp_bda->backward(lane, dy, mb), mb);
    dmiddle = slots_.pre_mlp_norm->backward(lane, dnormed, dy, mb);
  }
  const Tensor dnormed =
      slots_.self_attention->backward(lane, slots_.attention_bda->backward(lane, dmiddle, mb), mb);
  Tensor dx = slots_.input_norm->backward(lane, dnormed, dmiddle, mb);
  mb.later.reached(lane, DrainPoint::kLayer);
  return dx;
}

}  // namespace weft
