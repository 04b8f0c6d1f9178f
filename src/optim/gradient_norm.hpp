// The global L2 norm of the gradients.
#pragma once

#include "data_parallel/param_buffer.hpp"

namespace weft {

// √Σ g² over every element of every global tensor, once. Each parameter's sum is taken in double, pieces in a
// fixed order; sums of parameters that are cut over `tp` are added over the group; then parameters are added
// in order. The gradients must be reduced over the data-parallel group. `scale` multiplies the gradients (1 /
// target tokens).
double gradient_norm(Lane& lane, const ParamBuffer& buffer, Communicator& tp, double scale);

// min(1, clip / (norm + 1e-6)), as torch and Megatron; 1 when clip is 0.
double clip_coefficient(double norm, double clip);

}  // namespace weft
