// Weights that may still be on their way when the forward pass has begun (gathered from the ranks that
// updated them): the part of the model that needs them waits, and nothing before it.
#pragma once

#include <memory>

#include "nn/module.hpp"

namespace weft::nn {

// Implemented by who gathers.
class WeightGate {
 public:
  virtual ~WeightGate() = default;
  // Returns when the weights of a block (ParamTraits::block) are whole.
  virtual void open(Lane& lane, int block) = 0;
};

class GatedLayer final : public Layer {
 public:
  GatedLayer(WeightGate& gate, int block, std::unique_ptr<Layer> inner)
      : gate_(gate), block_(block), inner_(std::move(inner)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override {
    gate_.open(lane, block_);
    return inner_->forward(lane, x, mb);
  }
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override {
    return inner_->backward(lane, dy, mb);
  }

 private:
  WeightGate& gate_;
  int block_;
  std::unique_ptr<Layer> inner_;
};

}  // namespace weft::nn
