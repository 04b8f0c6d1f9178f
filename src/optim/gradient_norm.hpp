// The global L2 norm of the gradients.
#pragma once

#include <span>

#include "data_parallel/param_buffer.hpp"
#include "ops/flat_pieces.hpp"

namespace weft {

// √Σ g² over every element of every global tensor, once: each is counted by the tensor-parallel rank that is
// its primary, on the stage that owns it, in what the data-parallel rank owns. Sums are double, first by
// block of the model (see ParamTraits), then over the blocks in order, so that cutting the model into stages
// changes no bit.
class GradientNorm {
 public:
  // `blocks`: of the whole model. `model`: the tensor- and pipeline-parallel ranks together; `dp` adds up
  // what is owned by slices.
  GradientNorm(Lane& lane, const ParamBuffer& buffer, int blocks, int tp_rank, Communicator& model,
               Communicator& dp);

  // Σ g² by block, of all ranks: [blocks] f64 on the lane's device. The gradients must be finished
  // (finalize_gradients). Collective.
  Tensor sums(Lane& lane) const;
  // From the values of sums() the norm of scale · g.
  static double norm(std::span<const double> sums, double scale);

 private:
  const ParamBuffer& buffer_;
  int blocks_;
  Communicator& model_;
  Communicator& dp_;
  ops::FlatPieces pieces_;
};

// min(1, clip / (norm + 1e-6)), as torch and Megatron; 1 when clip is 0.
double clip_coefficient(double norm, double clip);

}  // namespace weft
