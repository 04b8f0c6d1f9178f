#include "nn/moe/shared_expert.hpp"

namespace weft::nn {

Tensor SharedExpert::into(Lane& lane, const Tensor& x, Microbatch& mb) const {
  return activation_->forward(lane, fc1_->forward(lane, x, mb), mb);
}

Tensor SharedExpert::out_of(Lane& lane, const Tensor& a, Microbatch& mb) const {
  return fc2_->forward(lane, a, mb);
}

Tensor SharedExpert::out_of_backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  return input_gradient(lane, *fc2_, dy, mb);
}

Tensor SharedExpert::into_backward(Lane& lane, const Tensor& da, Microbatch& mb) const {
  return input_gradient(lane, *fc1_, activation_->backward(lane, da, mb), mb);
}

}  // namespace weft::nn
