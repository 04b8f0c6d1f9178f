// The experts of a rank: as many gated or plain feed-forward networks, computed as grouped products over rows
// in their order. A row's weight is part of the activation, so that fc2's results are ready to be summed.
#pragma once

#include "nn/microbatch.hpp"
#include "nn/param.hpp"
#include "ops/activation.hpp"

namespace weft::nn {

class GroupedExperts {
 public:
  // fc1 [E · f, h], gated [E · 2f, h] with each expert's gate above its up; fc2 [E · h, f]; f: of this
  // expert-tensor-parallel rank. Both outlive this.
  GroupedExperts(const Param& fc1, const Param& fc2, ops::Activation kind, bool gated)
      : fc1_(fc1), fc2_(fc2), kind_(kind), gated_(gated) {}

  // x [R, h], weights [R] (accumulator type), offsets [E + 1] -> y [R, h], rows of nobody 0.
  Tensor forward(Lane& lane, const Tensor& x, const Tensor& weights, const Tensor& offsets,
                 Microbatch& mb) const;
  struct Gradients {
    Tensor dx, dweights;  // [R, h], [R]
  };
  Gradients backward(Lane& lane, const Tensor& dy, Microbatch& mb) const;

  struct Pending {
    Tensor x, dh;  // of fc1
    Tensor a, dy;  // of fc2
    Tensor offsets;
  };
  void weight_grad(Lane& lane, Pending pending) const;

 private:
  struct Saved {
    Tensor x, h, weights, offsets;
  };
  const Param& fc1_;
  const Param& fc2_;
  ops::Activation kind_;
  bool gated_;
};

}  // namespace weft::nn
