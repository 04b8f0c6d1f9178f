#include "ops/cpu/activation_function.hpp"
#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {

void activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y) {
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_spans(lane, x.rows(), x.columns(), x.contiguous(), [&](Index r, Index j, Index n) {
      const T* __restrict in = x.data<T>() + r * x.ld() + j;
      T* __restrict out = y.data<T>() + r * y.ld() + j;
      for (Index i = 0; i < n; ++i) out[i] = from_acc<T>(F::value(to_acc(in[i])));
    });
  });
}

void activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_spans(lane, x.rows(), x.columns(), x.contiguous() && dy.contiguous(), [&](Index r, Index j, Index n) {
      const T* __restrict in = x.data<T>() + r * x.ld() + j;
      const T* __restrict grad = dy.data<T>() + r * dy.ld() + j;
      T* __restrict out = dx.data<T>() + r * dx.ld() + j;
      for (Index i = 0; i < n; ++i) out[i] = from_acc<T>(to_acc(grad[i]) * F::derivative(to_acc(in[i])));
    });
  });
}

void gated_activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y) {
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
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
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
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
