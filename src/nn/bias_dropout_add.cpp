#include "nn/bias_dropout_add.hpp"

#include "ops/dropout.hpp"
#include "ops/gemm.hpp"

namespace weft::nn {

std::uint64_t dropout_site(std::int64_t layer, std::string_view place) {
  return RandomKey{}.with(static_cast<std::uint64_t>(layer)).with(place).value;
}

Tensor BiasDropoutAdd::forward(Lane& lane, const Tensor& x, const Tensor& residual, Microbatch& mb) const {
  return ops::bias_dropout_add(lane, x, bias_ != nullptr ? bias_->weight() : Tensor(), residual,
                               {.p = p_,
                                .key = mb.dropout_key.with(site_),
                                .sample_ids = mb.batch.sample_ids,
                                .tokens = border_.positions_outside(x.dim(0))});
}

Tensor BiasDropoutAdd::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  Tensor dx = ops::dropout_backward(lane, dy,
                                    {.p = p_,
                                     .key = mb.dropout_key.with(site_),
                                     .sample_ids = mb.batch.sample_ids,
                                     .tokens = border_.positions_outside(dy.dim(0))});
  if (bias_ != nullptr) {
    bias_->contribute(
        [&](const Tensor& gradient, float beta) { ops::bias_gradient(lane, dx, gradient, beta); });
  }
  return dx;
}

}  // namespace weft::nn
