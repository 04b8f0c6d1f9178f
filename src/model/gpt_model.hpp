// GptModel: embedding, layers, final norm, output layer and loss.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/spec.hpp"
#include "nn/embedding.hpp"
#include "nn/head.hpp"
#include "nn/module.hpp"
#include "ops/rope.hpp"

namespace weft {

class GptModel {
 public:
  // What the parts refer to, made first and kept alive with them.
  struct Shared {
    std::unique_ptr<nn::TensorParallelBorder> border;
    std::optional<ops::RopeTable> rotary;
  };
  struct Parts {
    std::unique_ptr<Shared> shared;
    std::unique_ptr<nn::Embedding> embedding;
    std::vector<std::unique_ptr<nn::Layer>> layers;
    std::unique_ptr<nn::Norm> final_norm;
    std::unique_ptr<nn::LanguageModelHead> head;
  };
  explicit GptModel(Parts parts) : parts_(std::move(parts)) {}

  // Sets mb.losses: the loss of each token, [s · b].
  void forward(Lane& lane, Microbatch& mb) const;
  // Adds the gradient of mb.loss_scale · Σ losses to every parameter's main_grad.
  void backward(Lane& lane, Microbatch& mb) const;
  // Logits of this rank's part of the vocabulary [s, b, V_padded/tp].
  Tensor logits(Lane& lane, Microbatch& mb) const;
  // The last position's logits [1, b, V_padded/tp] (generation).
  Tensor last_logits(Lane& lane, Microbatch& mb) const;
  // Runs the forward pass part by part and names the first one with a NaN or infinity in its output; empty:
  // none.
  std::string first_nonfinite(Lane& lane, Microbatch& mb) const;

 private:
  Tensor hidden(Lane& lane, Microbatch& mb) const;
  Parts parts_;
};

// Where build() puts things.
struct BuildContext {
  ParamSet& params;
  Communicator& tp;
  DType dtype;             // of weights and activations
  std::int64_t positions;  // longest sequence that will be seen (rows of the rotary table)
};

// The objects of a spec. The parameters get their memory later (data_parallel); tables are taken from the
// lane now.
std::unique_ptr<GptModel> build(const ModelSpec& spec, Lane& lane, const BuildContext& context);

// Rows of the vocabulary on one tensor-parallel rank, padding included.
std::int64_t padded_vocab_per_rank(const ModelSpec& spec, int tensor_parallel_size);

}  // namespace weft
