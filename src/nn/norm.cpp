#include "nn/norm.hpp"

#include "ops/norm.hpp"

namespace weft::nn {

Tensor RmsNorm::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  ops::NormResult result = ops::rms_norm(lane, x, weight_.weight(), eps_);
  mb.saved.push(Saved{x, std::move(result.rstd)});
  return std::move(result.y);
}

Tensor RmsNorm::backward(Lane& lane, const Tensor& dy, const Tensor& dresidual, Microbatch& mb) const {
  const auto [x, rstd] = mb.saved.pop<Saved>();
  Tensor dx = ops::rms_norm_backward(lane, dy, x, weight_.weight(), rstd, dresidual,
                                     {weight_.main_grad(), Tensor(), weight_.beta()});
  weight_.ready();
  return dx;
}

Tensor LayerNorm::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  ops::NormResult result = ops::layer_norm(lane, x, weight_.weight(), bias_.weight(), eps_);
  mb.saved.push(Saved{x, std::move(result.mean), std::move(result.rstd)});
  return std::move(result.y);
}

Tensor LayerNorm::backward(Lane& lane, const Tensor& dy, const Tensor& dresidual, Microbatch& mb) const {
  const auto [x, mean, rstd] = mb.saved.pop<Saved>();
  const float beta = (weight_.trains() ? weight_ : bias_).beta();  // a frozen one counts no contributions
  Tensor dx = ops::layer_norm_backward(lane, dy, x, weight_.weight(), mean, rstd, dresidual,
                                       {weight_.main_grad(), bias_.main_grad(), beta});
  weight_.ready();
  bias_.ready();
  return dx;
}

}  // namespace weft::nn
