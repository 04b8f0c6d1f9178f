// Activations of feed-forward layers; computed in the accumulator type. Formulas: golden ops "activations".
#pragma once

#include "core/lane.hpp"

namespace weft::ops {

enum class Activation {
  kGeluTanh,     // 0.5x(1 + tanh(√(2/π)(x + 0.044715x³)))
  kGeluErf,      // 0.5x(1 + erf(x/√2))
  kSilu,         // x · sigmoid(x)
  kRelu,         // max(x, 0)
  kSquaredRelu,  // max(x, 0)²
  kQuickGelu,    // x · sigmoid(1.702x)
};
const char* name_of(Activation activation);

// y = f(x), elementwise; x [..., f].
Tensor activation(Lane& lane, Activation kind, const Tensor& x);
// dx = dy · f'(x)
Tensor activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x);

// Gated units: x [..., 2f] = [gate | up] halves of the last dim, y [..., f] = f(gate) · up (SwiGLU: kSilu).
Tensor gated_activation(Lane& lane, Activation kind, const Tensor& x);
// dx [..., 2f]
Tensor gated_activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x);

// Backward of either together with the forward pass again, for who has not kept y: the same numbers, and x is
// read once.
struct ActivationAgain {
  Tensor dx, y;
};
// db [f], if defined: = beta · db + column sums of dx, as bias_gradient() has them: of the bias that x was
// made with.
ActivationAgain activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                                 const Tensor& db = {}, float beta = 0);
ActivationAgain gated_activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x);

}  // namespace weft::ops
