#include <algorithm>

#include "ops/cpu/activation_function.hpp"
#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

constexpr Index kBlock = 512;  // of a row, while it is in L1
constexpr Index kLanes = 16;

// Σ x, in an order that n alone decides.
template <class A>
A sum_of(const A* x, Index n) {
  A lanes[kLanes] = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (Index l = 0; l < kLanes; ++l) lanes[l] += x[i + l];
  }
  for (Index l = 0; i + l < n; ++l) lanes[l] += x[i + l];
  A sum = 0;
  for (const A lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void scaled_activation(Lane& lane, Activation kind, bool gated, const Tensor& x, const Tensor& scale,
                       const Tensor& y) {
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    using A = accumulator_t<T>;
    const Index f = y.dim(1);
    for_rows(lane, y.dim(0), f, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const T* __restrict gate = x.data<T>() + r * x.ld();
        const T* __restrict up = gate + f;
        T* __restrict out = y.data<T>() + r * y.ld();
        const A s = scale.data<A>()[r];
        if (gated) {
          for (Index i = 0; i < f; ++i) out[i] = from_acc<T>(s * (F::value(to_acc(gate[i])) * to_acc(up[i])));
        } else {
          for (Index i = 0; i < f; ++i) out[i] = from_acc<T>(s * F::value(to_acc(gate[i])));
        }
      }
    });
  });
}

void scaled_activation_backward(Lane& lane, Activation kind, bool gated, const Tensor& dy, const Tensor& x,
                                const Tensor& scale, const ScaledActivationGradient& gradient) {
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    using A = accumulator_t<T>;
    const Index f = dy.dim(1);
    for_rows(lane, dy.dim(0), 2 * f, [&](Index begin, Index end) {
      A products[kBlock];  // dy · y / scale
      for (Index r = begin; r < end; ++r) {
        const A s = scale.data<A>()[r];
        double dscale = 0;
        for (Index first = 0; first < f; first += kBlock) {
          const Index n = std::min(kBlock, f - first);
          const T* __restrict gate = x.data<T>() + r * x.ld() + first;
          const T* __restrict up = gate + f;
          const T* __restrict grad = dy.data<T>() + r * dy.ld() + first;
          T* __restrict dgate = gradient.dx.data<T>() + r * gradient.dx.ld() + first;
          T* __restrict dup = dgate + f;
          if (gated) {
            for (Index i = 0; i < n; ++i) {
              const A g = to_acc(gate[i]), u = to_acc(up[i]), d = to_acc(grad[i]), value = F::value(g);
              dgate[i] = from_acc<T>(d * s * u * F::derivative(g));
              dup[i] = from_acc<T>(d * s * value);
              products[i] = d * (value * u);
            }
          } else {
            for (Index i = 0; i < n; ++i) {
              const A g = to_acc(gate[i]), d = to_acc(grad[i]);
              dgate[i] = from_acc<T>(d * s * F::derivative(g));
              products[i] = d * F::value(g);
            }
          }
          dscale += static_cast<double>(sum_of(products, n));
        }
        gradient.dscale.data<A>()[r] = static_cast<A>(dscale);
      }
    });
  });
  // Here x comes from the cache.
  scaled_activation(lane, kind, gated, x, scale, gradient.y);
}

}  // namespace weft::ops::cpu
