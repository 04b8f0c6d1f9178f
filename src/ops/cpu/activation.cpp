#include <type_traits>

#include "ops/cpu/math.hpp"
#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

// f(x) and f'(x); both are short enough that asking for one of them costs little.
template <Activation kKind, class A>
struct Function {
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

// Calls body(F, T) with F<A> the function and T the element type.
template <class Body>
void visit(Activation kind, DType dtype, Body&& body) {
  visit_floating(dtype, [&]<class T>(T) {
    visit_activation(kind, [&]<Activation kKind>(std::integral_constant<Activation, kKind>) {
      body(Function<kKind, accumulator_t<T>>{}, T{});
    });
  });
}

}  // namespace

void activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y) {
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_spans(lane, x.rows(), x.columns(), x.contiguous(), [&](Index r, Index j, Index n) {
      const T* __restrict in = x.data<T>() + r * x.ld() + j;
      T* __restrict out = y.data<T>() + r * y.ld() + j;
      for (Index i = 0; i < n; ++i) out[i] = from_acc<T>(F::value(to_acc(in[i])));
    });
  });
}

void activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_spans(lane, x.rows(), x.columns(), x.contiguous() && dy.contiguous(), [&](Index r, Index j, Index n) {
      const T* __restrict in = x.data<T>() + r * x.ld() + j;
      const T* __restrict grad = dy.data<T>() + r * dy.ld() + j;
      T* __restrict out = dx.data<T>() + r * dx.ld() + j;
      for (Index i = 0; i < n; ++i) out[i] = from_acc<T>(to_acc(grad[i]) * F::derivative(to_acc(in[i])));
    });
  });
}

void gated_activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y) {
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    const Index f = y.columns();
    for_rows(lane, y.rows(), f, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const T* __restrict gate = x.data<T>() + r * x.ld();
        const T* __restrict up = gate + f;
        T* __restrict out = y.data<T>() + r * y.ld();
        for (Index i = 0; i < f; ++i) out[i] = from_acc<T>(F::value(to_acc(gate[i])) * to_acc(up[i]));
      }
    });
  });
}

void gated_activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                               const Tensor& dx) {
  visit(kind, x.dtype(), [&]<class F, class T>(F, T) {
    const Index f = dy.columns();
    for_rows(lane, dy.rows(), 2 * f, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const T* __restrict gate = x.data<T>() + r * x.ld();
        const T* __restrict up = gate + f;
        const T* __restrict grad = dy.data<T>() + r * dy.ld();
        T* __restrict dgate = dx.data<T>() + r * dx.ld();
        T* __restrict dup = dgate + f;
        for (Index i = 0; i < f; ++i) {
          const auto g = to_acc(gate[i]), d = to_acc(grad[i]);
          dgate[i] = from_acc<T>(d * to_acc(up[i]) * F::derivative(g));
          dup[i] = from_acc<T>(d * F::value(g));
        }
      }
    });
  });
}

// Here x comes from the cache the second time.
void activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                      const ActivationAgain& again, const Tensor& db, float beta, const Tensor& scratch) {
  activation_backward(lane, kind, dy, x, again.dx);
  activation(lane, kind, x, again.y);
  if (db.defined()) bias_gradient(lane, again.dx, db, beta, scratch);
}

void gated_activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                            const ActivationAgain& again) {
  gated_activation_backward(lane, kind, dy, x, again.dx);
  gated_activation(lane, kind, x, again.y);
}

}  // namespace weft::ops::cpu
