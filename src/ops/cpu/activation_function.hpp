// Value and derivative of each activation: what its twins on the CPU are made of.
#pragma once

#include <type_traits>

#include "ops/activation.hpp"
#include "ops/cpu/math.hpp"
#include "ops/cpu/support.hpp"

namespace weft::ops::cpu {

// f(x) and f'(x); both are short enough that asking for one of them costs little.
template <Activation kKind, class A>
struct ActivationFunction {
  WEFT_ALWAYS_INLINE static A value(A x) {
    if constexpr (kKind == Activation::kGeluTanh) {
      return A(0.5) * x * (A{1} + tanh_of(inner(x)));
    } else if constexpr (kKind == Activation::kGeluErf) {
      return A(0.5) * x * (A{1} + erf_of(x * std::numbers::sqrt2_v<A> / A{2}));
    } else if constexpr (kKind == Activation::kSilu) {
      return x * sigmoid_of(x);
    } else if constexpr (kKind == Activation::kRelu) {
      return x < A{0} ? A{0} : x;  // NaN stays NaN
    } else if constexpr (kKind == Activation::kSquaredRelu) {
      return x < A{0} ? A{0} : x * x;
    } else {
      static_assert(kKind == Activation::kQuickGelu, "this activation has no formula here");
      return x * sigmoid_of(A(1.702) * x);
    }
  }

  WEFT_ALWAYS_INLINE static A derivative(A x) {
    if constexpr (kKind == Activation::kGeluTanh) {
      const A t = tanh_of(inner(x));
      return A(0.5) * (A{1} + t) +
             A(0.5) * x * (A{1} - t * t) * kTanhFactor * (A{1} + A(3 * 0.044715) * x * x);
    } else if constexpr (kKind == Activation::kGeluErf) {
      // Φ(x) + x φ(x)
      constexpr A kDensity = std::numbers::inv_sqrtpi_v<A> * std::numbers::sqrt2_v<A> / A{2};
      return A(0.5) * (A{1} + erf_of(x * std::numbers::sqrt2_v<A> / A{2})) +
             x * kDensity * exp_of(A(-0.5) * x * x);
    } else if constexpr (kKind == Activation::kSilu) {
      const A s = sigmoid_of(x);
      return s * (A{1} + x * (A{1} - s));
    } else if constexpr (kKind == Activation::kRelu) {
      return x > A{0} ? A{1} : A{0};
    } else if constexpr (kKind == Activation::kSquaredRelu) {
      return x > A{0} ? A{2} * x : A{0};
    } else {
      static_assert(kKind == Activation::kQuickGelu, "this activation has no derivative here");
      const A s = sigmoid_of(A(1.702) * x);
      return s * (A{1} + A(1.702) * x * (A{1} - s));
    }
  }

 private:
  static constexpr A kTanhFactor = A(0.79788456080286535588);  // √(2/π)
  WEFT_ALWAYS_INLINE static A inner(A x) { return kTanhFactor * (x + A(0.044715) * x * x * x); }
};

// Calls body(F, T) with F the function, in the accumulator type, and T the element type.
template <class Body>
void visit_function(Activation kind, DType dtype, Body&& body) {
  visit_floating(dtype, [&]<class T>(T) {
    visit_activation(kind, [&]<Activation kKind>(std::integral_constant<Activation, kKind>) {
      body(ActivationFunction<kKind, accumulator_t<T>>{}, T{});
    });
  });
}

}  // namespace weft::ops::cpu
