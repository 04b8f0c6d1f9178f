// One transformer layer: two sublayers, each normalised at its input and added to the residual stream
// (pre-norm).
#pragma once

#include <memory>

#include "nn/module.hpp"

namespace weft {

class TransformerLayer final : public nn::Layer {
 public:
  struct Slots {
    std::unique_ptr<nn::Norm> input_norm;
    std::unique_ptr<nn::Sublayer> self_attention;
    std::unique_ptr<nn::ResidualAdd> attention_bda;
    std::unique_ptr<nn::Norm> pre_mlp_norm;
    std::unique_ptr<nn::Sublayer> mlp;
    std::unique_ptr<nn::ResidualAdd> mlp_bda;
  };
  explicit TransformerLayer(Slots slots) : slots_(std::move(slots)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  Slots slots_;
};

}  // namespace weft
