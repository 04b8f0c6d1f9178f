// Parameter updates over flat memory. All arithmetic is in the master's dtype (f32; f64 in tests).
#pragma once

#include "ops/flat_pieces.hpp"

namespace weft::ops {

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  std::int64_t t = 1;         // 1 at the first update
  double gradient_scale = 1;  // clip coefficient / number of target tokens / loss scale
};

// Decoupled weight decay (Loshchilov & Hutter 2019), bias-corrected as torch.optim.AdamW and FusedAdam:
//   g = gradient_scale · grad;  p −= lr · weight_decay · p;  m = β1 m + (1−β1) g;  v = β2 v + (1−β2) g²
//   p −= lr / (1−β1ᵗ) · m / (√v / √(1−β2ᵗ) + eps);  weight = round(p)
// Weights of pieces with tag 0 do not decay.
struct AdamWTensors {
  Tensor master, exp_avg, exp_avg_sq;  // [owned] same dtype
  Tensor gradient;                     // [offset] the same
  Tensor weight;                       // [offset] any floating dtype; may be the master itself
};
void adamw(Lane& lane, const AdamWStep& step, const FlatPieces& pieces, const AdamWTensors& t);

struct SgdStep {
  double lr = 0, momentum = 0, weight_decay = 0;
  bool first = true;  // the momentum buffer is written, not read
  double gradient_scale = 1;
};

// torch.optim.SGD: g += weight_decay · p; buffer = momentum · buffer + g (first: g); p −= lr · buffer.
// Weights of pieces with tag 0 do not decay. `buffer` may be undefined when momentum = 0.
struct SgdTensors {
  Tensor master, buffer, gradient, weight;  // as for AdamW
};
void sgd(Lane& lane, const SgdStep& step, const FlatPieces& pieces, const SgdTensors& t);

}  // namespace weft::ops
