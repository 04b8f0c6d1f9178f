// Normalisation over the last dim. Weights and bias have x's dtype; statistics are f32 (f64 for f64), one per
// row.
#pragma once

#include "core/lane.hpp"

namespace weft::ops {

struct NormResult {
  Tensor y;     // like x
  Tensor mean;  // [rows], LayerNorm only
  Tensor rstd;  // [rows]
};

// Where the gradients of a norm's parameters go: main gradients in the accumulator type, = beta · old + new.
// What is undefined is not wanted.
struct NormGradients {
  Tensor weight;  // [h]
  Tensor bias;    // [h], LayerNorm only
  float beta = 1;
};

// y = x · rstd · w, rstd = 1 / sqrt(mean(x²) + eps)          (Zhang & Sennrich 2019)
NormResult rms_norm(Lane& lane, const Tensor& x, const Tensor& weight, double eps);
// dx (+ dresidual, if defined: the gradient that reaches x past the norm), and the weight gradient.
Tensor rms_norm_backward(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const Tensor& rstd, const Tensor& dresidual, const NormGradients& gradients);

// y = (x − mean) · rstd · w + b, rstd = 1 / sqrt(var + eps), var biased      (Ba et al. 2016)
NormResult layer_norm(Lane& lane, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
Tensor layer_norm_backward(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& weight,
                           const Tensor& mean, const Tensor& rstd, const Tensor& dresidual,
                           const NormGradients& gradients);

}  // namespace weft::ops
