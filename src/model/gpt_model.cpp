#include "model/gpt_model.hpp"

#include "ops/elementwise.hpp"

namespace weft {

Tensor GptModel::hidden(Lane& lane, Microbatch& mb) const {
  Tensor x = parts_.embedding->forward(lane, mb);
  for (const auto& layer : parts_.layers) x = layer->forward(lane, x, mb);
  return parts_.final_norm->forward(lane, x, mb);
}

void GptModel::forward(Lane& lane, Microbatch& mb) const {
  parts_.head->forward(lane, hidden(lane, mb), mb);
}

void GptModel::backward(Lane& lane, Microbatch& mb) const {
  Tensor dx;
  {
    Async<Tensor> dhidden = parts_.head->backward(lane, mb);
    mb.later.reached(lane, DrainPoint::kLinear);
    dx = parts_.final_norm->backward(lane, dhidden.wait(lane), Tensor(), mb);
  }
  for (auto layer = parts_.layers.rbegin(); layer != parts_.layers.rend(); ++layer) {
    dx = (*layer)->backward(lane, dx, mb);
  }
  mb.later.reached(lane, DrainPoint::kStage);
  parts_.embedding->backward(lane, dx, mb);
}

Tensor GptModel::logits(Lane& lane, Microbatch& mb) const {
  return parts_.head->logits(lane, hidden(lane, mb));
}

Tensor GptModel::last_logits(Lane& lane, Microbatch& mb) const {
  const Tensor x = hidden(lane, mb);
  return parts_.head->logits(lane, x.slice(x.dim(0) - 1, 1));
}

std::string GptModel::first_nonfinite(Lane& lane, Microbatch& mb) const {
  const auto bad = [&](const Tensor& x) { return ops::find_nonfinite(lane, x) >= 0; };
  Tensor x = parts_.embedding->forward(lane, mb);
  if (bad(x)) return "the embedding";
  for (std::size_t i = 0; i < parts_.layers.size(); ++i) {
    x = parts_.layers[i]->forward(lane, x, mb);
    if (bad(x)) return fmt::format("layer {}", i);
  }
  x = parts_.final_norm->forward(lane, x, mb);
  if (bad(x)) return "the final norm";
  parts_.head->forward(lane, x, mb);
  return bad(mb.losses) ? "the loss" : "";
}

}  // namespace weft
