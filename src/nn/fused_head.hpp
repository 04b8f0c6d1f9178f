// The output layer and its loss where the vocabulary is not cut, so that the loss's gradient is known as soon
// as the logits are: the forward pass goes on to the gradients of input and weight, in pieces of the
// sequence, and the logits of one piece are all that exist at a time. With them whole they would be the
// largest tensor of a training step.
#pragma once

#include "nn/head.hpp"

namespace weft::nn {

class FusedHead final : public OutputHead {
 public:
  // `whole`: the same head, for passes that keep nothing (evaluation) and for looks at the logits; its group
  // has one rank. rows: logits of about this many tokens at a time, of half of them at most. Each piece reads
  // and writes the fp32 weight gradient once more (8 · V · h bytes), so they should be large.
  FusedHead(LanguageModelHead whole, std::int64_t rows) : whole_(std::move(whole)), rows_(rows) {}

  // The gradients of mb.loss_scale · Σ losses; the weight's is added here, microbatch by microbatch.
  void forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Async<Tensor> backward(Lane& lane, Microbatch& mb) const override;
  Tensor logits(Lane& lane, const Tensor& x) const override { return whole_.logits(lane, x); }

 private:
  struct Saved {
    Tensor dx;
  };
  LanguageModelHead whole_;
  std::int64_t rows_;
};

}  // namespace weft::nn
