// Value and derivative of each activation: what its kernels are made of.
#pragma once

#include <type_traits>

#include "ops/activation.hpp"
#include "ops/cuda/kernel.cuh"

namespace weft::ops::cuda {

// x / (1 + e⁻ᶻ) = x · sigmoid(z). With 16-bit tensors the hardware's exponential and division are far inside
// their rounding, and the exact ones would cost more than the memory does.
template <bool kFast>
__device__ inline float times_sigmoid(float x, float z) {
  if constexpr (kFast) {
    return __fdividef(x, 1.0f + __expf(-z));  // a denominator above 2¹²⁶ gives 0
  } else {
    return x / (1.0f + expf(-z));
  }
}
template <bool kFast>
__device__ inline double times_sigmoid(double x, double z) {
  return x / (1.0 + exp(-z));
}
template <bool kFast>
__device__ inline float exp_of(float x) {
  return kFast ? __expf(x) : expf(x);
}
template <bool kFast>
__device__ inline double exp_of(double x) {
  return exp(x);
}
__device__ inline float erf_of(float x) {
  return erff(x);
}
__device__ inline double erf_of(double x) {
  return erf(x);
}

template <class T>
constexpr bool kShort = sizeof(T) == 2;
constexpr double kTwiceRoot = 2 * 0.79788456080286535588;  // 2 √(2/π)

// f(x) and f'(x). The tanh of GELU is written with a sigmoid: (1 + tanh u) / 2 = sigmoid(2 u).
template <Activation kKind, class T>
struct Function {
  using A = Acc<T>;

  static __device__ A value(A x) { return both<false>(x).value; }
  static __device__ A derivative(A x) { return both<true>(x).derivative; }

  struct Both {
    A value, derivative;
  };
  template <bool kDerivative = true>
  static __device__ Both both(A x) {
    if constexpr (kKind == Activation::kGeluErf) {
      const A phi = A(0.5) * (A{1} + erf_of(x * A(0.70710678118654752440)));
      if constexpr (!kDerivative) return {x * phi, A{0}};
      constexpr A kDensity = A(0.39894228040143267794);  // 1/√(2π)
      // Of two products one is added to the other: which of them is fused must not depend on the kernel.
      return {x * phi, fma(x * kDensity, exp_of<kShort<T>>(A(-0.5) * x * x), phi)};
    } else if constexpr (kKind == Activation::kRelu) {
      return {x < A{0} ? A{0} : x, x > A{0} ? A{1} : A{0}};  // NaN stays NaN
    } else if constexpr (kKind == Activation::kSquaredRelu) {
      return {x < A{0} ? A{0} : x * x, x > A{0} ? A{2} * x : A{0}};
    } else {
      static_assert(
          kKind == Activation::kGeluTanh || kKind == Activation::kSilu || kKind == Activation::kQuickGelu,
          "this activation has no formula here");
      const A z = inner(x);
      if constexpr (!kDerivative) return {times_sigmoid<kShort<T>>(x, z), A{0}};
      const A s = times_sigmoid<kShort<T>>(A{1}, z);
      return {x * s, s + x * s * (A{1} - s) * slope(x)};
    }
  }

 private:
  // The argument of the sigmoid, and its derivative.
  static __device__ A inner(A x) {
    if constexpr (kKind == Activation::kGeluTanh) return A(kTwiceRoot) * (x + A(0.044715) * x * x * x);
    if constexpr (kKind == Activation::kQuickGelu) return A(1.702) * x;
    return x;
  }
  static __device__ A slope(A x) {
    if constexpr (kKind == Activation::kGeluTanh) return A(kTwiceRoot) * (A{1} + A(3 * 0.044715) * x * x);
    if constexpr (kKind == Activation::kQuickGelu) return A(1.702);
    return A{1};
  }
};

// Calls body(F, T) with the function and the element type.
template <class Body>
void visit_function(Activation kind, DType dtype, Body&& body) {
  visit_floating(dtype, [&]<class T>(T) {
    visit_activation(kind, [&]<Activation kKind>(std::integral_constant<Activation, kKind>) {
      body(Function<kKind, T>{}, T{});
    });
  });
}

}  // namespace weft::ops::cuda
