// The output layer and the loss: logits with the vocabulary cut over tensor-parallel ranks, cross-entropy on
// the cut logits. The logits exist once, in the compute dtype; backward turns them into their own gradient.
#pragma once

#include "nn/microbatch.hpp"
#include "nn/param.hpp"
#include "nn/tensor_parallel.hpp"
#include "ops/cross_entropy.hpp"

namespace weft::nn {

class OutputHead {
 public:
  virtual ~OutputHead() = default;
  // x [s, b, h] outside the tensor-parallel region. Sets mb.losses.
  virtual void forward(Lane& lane, const Tensor& x, Microbatch& mb) const = 0;
  // The gradient of mb.loss_scale · Σ losses with respect to x.
  virtual Async<Tensor> backward(Lane& lane, Microbatch& mb) const = 0;
  // The logits of this rank's part of the vocabulary [s, b, V_padded/tp]; saves nothing.
  virtual Tensor logits(Lane& lane, const Tensor& x) const = 0;
};

class LanguageModelHead final : public OutputHead {
 public:
  // weight [V_padded/tp, h]; for a tied model its weight() is the word embeddings', its main_grad() its own.
  LanguageModelHead(const TensorParallelBorder& border, const Param& weight, ops::CrossEntropyOptions options)
      : border_(border), weight_(weight), options_(options) {}

  void forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Async<Tensor> backward(Lane& lane, Microbatch& mb) const override;
  Tensor logits(Lane& lane, const Tensor& x) const override;

  const Param& weight() const { return weight_; }
  const ops::CrossEntropyOptions& options() const { return options_; }

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
