// The output layer and the loss: logits with the vocabulary cut over tensor-parallel ranks, cross-entropy on
// the cut logits. The logits exist once, in the compute dtype; backward turns them into their own gradient.
#pragma once

#include "nn/microbatch.hpp"
#include "nn/param.hpp"
#include "nn/tensor_parallel.hpp"
#include "ops/cross_entropy.hpp"

namespace weft::nn {

class LanguageModelHead {
 public:
  // weight [V_padded/tp, h]; for a tied model its weight() is the word embeddings', its main_grad() its own.
  LanguageModelHead(const TensorParallelBorder& border, const Param& weight, ops::CrossEntropyOptions options)
      : border_(border), weight_(weight), options_(options) {}

  // x [s, b, h] outside the region. Sets mb.losses.
  void forward(Lane& lane, const Tensor& x, Microbatch& mb) const;
  // The gradient of mb.loss_scale · Σ losses with respect to x.
  Async<Tensor> backward(Lane& lane, Microbatch& mb) const;
  // The logits of this rank's part of the vocabulary [s, b, V_padded/tp]; saves nothing.
  Tensor logits(Lane& lane, const Tensor& x) const;

  struct Pending {
    Tensor dlogits, x;
  };
  void weight_grad(Lane& lane, Pending pending) const;

 private:
  struct Saved {
    Tensor x, logits, lse;
  };
  const TensorParallelBorder& border_;
  const Param& weight_;
  ops::CrossEntropyOptions options_;
};

}  // namespace weft::nn
