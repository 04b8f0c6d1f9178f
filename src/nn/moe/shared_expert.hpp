// A feed-forward network that every token goes through beside its experts. In two halves, so that a layer can
// let one run under the tokens' way to their experts and the other under their way back.
#pragma once

#include <memory>

#include "nn/mlp.hpp"

namespace weft::nn {

class SharedExpert {
 public:
  SharedExpert(std::unique_ptr<Linear> fc1, std::unique_ptr<ActivationLayer> activation,
               std::unique_ptr<Linear> fc2)
      : fc1_(std::move(fc1)), activation_(std::move(activation)), fc2_(std::move(fc2)) {}

  // x [s, b, h] -> the activation [s, b, f/tp], and from there to [s, b, h]. Backward the other way round.
  Tensor into(Lane& lane, const Tensor& x, Microbatch& mb) const;
  Tensor out_of(Lane& lane, const Tensor& a, Microbatch& mb) const;
  Tensor out_of_backward(Lane& lane, const Tensor& dy, Microbatch& mb) const;
  Tensor into_backward(Lane& lane, const Tensor& da, Microbatch& mb) const;

 private:
  std::unique_ptr<Linear> fc1_;
  std::unique_ptr<ActivationLayer> activation_;
  std::unique_ptr<Linear> fc2_;
};

}  // namespace weft::nn
