#include <utility>

#include "ops/cuda/spans.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

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
      return {x * phi, phi + x * kDensity * exp_of<kShort<T>>(A(-0.5) * x * x)};
    } else if constexpr (kKind == Activation::kRelu) {
      return {x < A{0} ? A{0} : x, x > A{0} ? A{1} : A{0}};  // NaN stays NaN
    } else if constexpr (kKind == Activation::kSquaredRelu) {
      return {x < A{0} ? A{0} : x * x, x > A{0} ? A{2} * x : A{0}};
    } else {
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

template <class F, class T>
struct Forward {
  static constexpr int kUnroll = 2;
  const T* x;
  Index x_ld;
  T* y;
  Index y_ld;
  template <int N>
  __device__ Vec<T, N> load(Index t, Index, Index j) const {
    return cuda::load<N>(x + t * x_ld + j);
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const Vec<T, N>& in) const {
    Vec<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = from_acc<T>(F::value(to_acc(in.v[i])));
    store(y + t * y_ld + j, out);
  }
};

// kAgain: y is written too, with the bits of Forward.
template <class F, class T, bool kAgain = false>
struct Backward {
  static constexpr int kUnroll = 2;
  const T *dy, *x;
  Index dy_ld, x_ld;
  T* dx;
  Index dx_ld;
  T* y = nullptr;
  Index y_ld = 0;
  template <int N>
  struct In {
    Vec<T, N> dy, x;
  };
  template <int N>
  __device__ In<N> load(Index t, Index, Index j) const {
    return {cuda::load<N>(dy + t * dy_ld + j), cuda::load<N>(x + t * x_ld + j)};
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const In<N>& in) const {
    Vec<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      out.v[i] = from_acc<T>(to_acc(in.dy.v[i]) * F::derivative(to_acc(in.x.v[i])));
    }
    store(dx + t * dx_ld + j, out);
    if constexpr (kAgain) Forward<F, T>{x, x_ld, y, y_ld}.run(t, 0, j, in.x);
  }
};

// `gate` and `up` are the halves of x.
template <class F, class T>
struct GatedForward {
  static constexpr int kUnroll = 2;
  const T *gate, *up;
  Index x_ld;
  T* y;
  Index y_ld;
  template <int N>
  struct In {
    Vec<T, N> gate, up;
  };
  template <int N>
  __device__ In<N> load(Index t, Index, Index j) const {
    return {cuda::load<N>(gate + t * x_ld + j), cuda::load<N>(up + t * x_ld + j)};
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const In<N>& in) const {
    Vec<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      out.v[i] = from_acc<T>(F::value(to_acc(in.gate.v[i])) * to_acc(in.up.v[i]));
    }
    store(y + t * y_ld + j, out);
  }
};

template <class F, class T, bool kAgain = false>
struct GatedBackward {
  static constexpr int kUnroll = 2;
  const T *dy, *gate, *up;
  Index dy_ld, x_ld;
  T *dgate, *dup;
  Index dx_ld;
  T* y = nullptr;
  Index y_ld = 0;
  template <int N>
  struct In {
    Vec<T, N> dy, gate, up;
  };
  template <int N>
  __device__ In<N> load(Index t, Index, Index j) const {
    return {cuda::load<N>(dy + t * dy_ld + j), cuda::load<N>(gate + t * x_ld + j),
            cuda::load<N>(up + t * x_ld + j)};
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const In<N>& in) const {
    Vec<T, N> to_gate, to_up;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto d = to_acc(in.dy.v[i]);
      const auto f = F::both(to_acc(in.gate.v[i]));
      to_gate.v[i] = from_acc<T>(d * to_acc(in.up.v[i]) * f.derivative);
      to_up.v[i] = from_acc<T>(d * f.value);
    }
    store(dgate + t * dx_ld + j, to_gate);
    store(dup + t * dx_ld + j, to_up);
    if constexpr (kAgain) {
      GatedForward<F, T>{gate, up, x_ld, y, y_ld}.template run<N>(t, 0, j, {in.gate, in.up});
    }
  }
};

template <class Body>
void visit_activation(Activation kind, Body&& body) {
  switch (kind) {
    case Activation::kGeluTanh:
      return body(std::integral_constant<Activation, Activation::kGeluTanh>{});
    case Activation::kGeluErf:
      return body(std::integral_constant<Activation, Activation::kGeluErf>{});
    case Activation::kSilu:
      return body(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kRelu:
      return body(std::integral_constant<Activation, Activation::kRelu>{});
    case Activation::kSquaredRelu:
      return body(std::integral_constant<Activation, Activation::kSquaredRelu>{});
    case Activation::kQuickGelu:
      return body(std::integral_constant<Activation, Activation::kQuickGelu>{});
  }
}

// Calls body(F, T) with the function and the element type.
template <class Body>
void visit(Activation kind, DType dtype, Body&& body) {
  visit_floating(dtype, [&]<class T>(T) {
    visit_activation(kind, [&]<Activation kKind>(std::integral_constant<Activation, kKind>) {
      body(Function<kKind, T>{}, T{});
    });
  });
}

// The halves of the last dimension: views whose rows lie apart.
struct Halves {
  explicit Halves(const Tensor& x)
      : gate(x.slice_columns(0, x.columns() / 2)), up(x.slice_columns(x.columns() / 2, x.columns() / 2)) {}
  Tensor gate, up;
};

}  // namespace

void activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y) {
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(stream(lane), "run activation",
                                Forward<F, T>{data<T>(x), x.ld(), data<T>(y), y.ld()}, x, y);
  });
}

void activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(
        stream(lane), "run activation_backward",
        Backward<F, T>{data<T>(dy), data<T>(x), dy.ld(), x.ld(), data<T>(dx), dx.ld()}, x, dy, dx);
  });
}

void gated_activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y) {
  const Halves in(x);
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(
        stream(lane), "run gated_activation",
        GatedForward<F, T>{data<T>(in.gate), data<T>(in.up), x.ld(), data<T>(y), y.ld()}, y, in.gate, in.up);
  });
}

void gated_activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                               const Tensor& dx) {
  const Halves in(x), out(dx);
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(stream(lane), "run gated_activation_backward",
                                GatedBackward<F, T>{data<T>(dy), data<T>(in.gate), data<T>(in.up), dy.ld(),
                                                    x.ld(), data<T>(out.gate), data<T>(out.up), dx.ld()},
                                dy, in.gate, in.up, out.gate, out.up);
  });
}

void activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                      const ActivationAgain& again) {
  const Tensor &dx = again.dx, &y = again.y;
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(stream(lane), "run activation_again",
                                Backward<F, T, true>{data<T>(dy), data<T>(x), dy.ld(), x.ld(), data<T>(dx),
                                                     dx.ld(), data<T>(y), y.ld()},
                                x, dy, dx, y);
  });
}

void gated_activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                            const ActivationAgain& again) {
  const Halves in(x), out(again.dx);
  const Tensor &dx = again.dx, &y = again.y;
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(
        stream(lane), "run gated_activation_again",
        GatedBackward<F, T, true>{data<T>(dy), data<T>(in.gate), data<T>(in.up), dy.ld(), x.ld(),
                                  data<T>(out.gate), data<T>(out.up), dx.ld(), data<T>(y), y.ld()},
        dy, in.gate, in.up, out.gate, out.up, y);
  });
}

}  // namespace weft::ops::cuda
