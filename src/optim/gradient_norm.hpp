// The global L2 norm of the gradients.
#pragma once

#include "data_parallel/param_buffer.hpp"

namespace weft {

// √Σ g² over every element of every global tensor, once: each is counted by the tensor-parallel rank that is
// its primary, on the stage that owns it, in what the data-parallel rank owns. Sums are double, first by
// block of the model (see ParamTraits), then over the blocks in order, so that cutting the model into stages
// changes no bit. `blocks`: of the whole model. `model`: the tensor- and pipeline-parallel ranks together;
// `dp` adds up what is owned by slices. The gradients must be finished (finalize_gradients); `scale`
// multiplies them.
double gradient_norm(Lane& lane, const ParamBuffer& buffer, int blocks, int tp_rank, Communicator& model,
                     Communicator& dp, double scale);

// min(1, clip / (norm + 1e-6)), as torch and Megatron; 1 when clip is 0.
double clip_coefficient(double norm, double clip);

}  // namespace weft
