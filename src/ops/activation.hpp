// Activations of feed-forward layers; computed in the accumulator type. Formulas: golden ops "activations".
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

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

// One row each: the name that options, presets and checkpoints have for it. Option values, stored names and
// the choice of a kernel are made from this table; a row without a formula in a twin does not compile.
struct ActivationName {
  Activation value;
  const char* name;
};
inline constexpr std::array kActivations = {
    ActivationName{Activation::kGeluTanh, "gelu_tanh"},
    ActivationName{Activation::kGeluErf, "gelu_erf"},
    ActivationName{Activation::kSilu, "silu"},
    ActivationName{Activation::kRelu, "relu"},
    ActivationName{Activation::kSquaredRelu, "squared_relu"},
    ActivationName{Activation::kQuickGelu, "quick_gelu"},
};
const char* name_of(Activation activation);

// Calls body(std::integral_constant<Activation, kind>{}): for twins, which make a kernel of each.
template <class Body>
void visit_activation(Activation kind, Body&& body) {
  const auto found = [&]<std::size_t... kRow>(std::index_sequence<kRow...>) {
    return ((kActivations[kRow].value == kind &&
             (body(std::integral_constant<Activation, kActivations[kRow].value>{}), true)) ||
            ...);
  };
  WEFT_CHECK(found(std::make_index_sequence<kActivations.size()>{}),
             "activation {} has no row in kActivations", static_cast<int>(kind));
}

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
