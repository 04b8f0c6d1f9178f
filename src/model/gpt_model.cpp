#include "model/gpt_model.hpp"

#include "ops/elementwise.hpp"

namespace weft {

Tensor GptModel::through_layers(Lane& lane, const Tensor& received, Microbatch& mb) const {
  Tensor x = parts_.entry->forward(lane, received, mb);
  for (const auto& layer : parts_.layers) x = layer->forward(lane, x, mb);
  return x;
}

Tensor GptModel::forward(Lane& lane, const Tensor& received, Microbatch& mb) const {
  return parts_.exit->forward(lane, through_layers(lane, received, mb), mb);
}

Tensor GptModel::backward(Lane& lane, const Tensor& received, Microbatch& mb) const {
  Tensor dx = parts_.exit->backward(lane, received, mb);
  for (auto layer = parts_.layers.rbegin(); layer != parts_.layers.rend(); ++layer) {
    dx = (*layer)->backward(lane, dx, mb);
  }
  mb.later.reached(lane, DrainPoint::kStage);
  return parts_.entry->backward(lane, dx, mb);
}

Tensor GptModel::look(Lane& lane, const Tensor& received, Microbatch& mb) const {
  return parts_.exit->look(lane, through_layers(lane, received, mb), mb);
}

Tensor GptModel::last_logits(Lane& lane, Microbatch& mb) const {
  const Tensor x = through_layers(lane, Tensor(), mb);
  return parts_.exit->look(lane, x.slice(x.dim(0) - 1, 1), mb);
}

std::string GptModel::first_nonfinite(Lane& lane, const Tensor& received, Microbatch& mb,
                                      Tensor* sent) const {
  std::string place;
  const auto look_at = [&](const Tensor& x, const std::string& part) {
    if (place.empty() && ops::find_nonfinite(lane, x) >= 0) place = part;
  };
  Tensor x = parts_.entry->forward(lane, received, mb);
  look_at(x, received.defined() ? "what it received" : "the embedding");
  for (std::size_t i = 0; i < parts_.layers.size(); ++i) {
    x = parts_.layers[i]->forward(lane, x, mb);
    look_at(x, fmt::format("layer {}", parts_.first_layer + static_cast<std::int64_t>(i)));
  }
  *sent = parts_.exit->forward(lane, x, mb);
  if (mb.losses.defined()) look_at(mb.losses, "the final norm, the output layer or the loss");
  return place;
}

}  // namespace weft
