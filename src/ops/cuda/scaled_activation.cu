#include "ops/cuda/activation_function.cuh"
#include "ops/cuda/spans.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

// y = scale · f(gate) (· up), of an element.
template <class F, class A>
__device__ inline A scaled(A scale, A gate) {
  return scale * F::value(gate);
}
template <class F, class A>
__device__ inline A scaled(A scale, A gate, A up) {
  return scale * (F::value(gate) * up);
}

template <class F, class T, bool kGated>
struct ScaledForward {
  static constexpr int kUnroll = 2;
  const T *gate, *up;
  Index x_ld;
  const Acc<T>* scale;
  T* y;
  Index y_ld;
  template <int N>
  struct In {
    Vec<T, N> gate, up;
    Acc<T> scale;
  };
  template <int N>
  __device__ In<N> load(Index t, Index, Index j) const {
    In<N> in;
    in.gate = cuda::load<N>(gate + t * x_ld + j);
    if constexpr (kGated) in.up = cuda::load<N>(up + t * x_ld + j);
    in.scale = scale[t];
    return in;
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const In<N>& in) const {
    Acc<T> out[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kGated) {
        out[i] = scaled<F>(in.scale, to_acc(in.gate.v[i]), to_acc(in.up.v[i]));
      } else {
        out[i] = scaled<F>(in.scale, to_acc(in.gate.v[i]));
      }
    }
    store(y + t * y_ld + j, rounded<T>(out));
  }
};

template <class T>
struct ScaledBackward {
  const T *dy, *gate, *up;
  Index dy_ld, x_ld;
  const Acc<T>* scale;
  T *dgate, *dup, *y;
  Index dx_ld, y_ld;
  Acc<T>* dscale;
  Index rows;
  int columns;
};

// kThreads to a row: a warp, or the whole block.
template <class F, class T, bool kGated, int N, int kThreads>
__global__ void __launch_bounds__(256) scaled_backward(const ScaledBackward<T> p) {
  using A = Acc<T>;
  __shared__ A shared[32];
  const Index row = blockIdx.x * Index{256 / kThreads} + threadIdx.x / kThreads;
  if (kThreads == 32 && row >= p.rows) return;
  const int thread = threadIdx.x % kThreads;
  const A scale = p.scale[row];
  A sum = 0;
#pragma unroll 1
  for (int j = thread * N; j < p.columns; j += kThreads * N) {
    const Vec<T, N> dy = load<N>(p.dy + row * p.dy_ld + j), gate = load<N>(p.gate + row * p.x_ld + j);
    Vec<T, N> up;
    if constexpr (kGated) up = load<N>(p.up + row * p.x_ld + j);
    A to_gate[N], to_up[N], out[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const A g = to_acc(gate.v[i]), d = to_acc(dy.v[i]);
      const auto f = F::both(g);
      if constexpr (kGated) {
        const A u = to_acc(up.v[i]);
        to_gate[i] = d * scale * u * f.derivative;
        to_up[i] = d * scale * f.value;
        sum += d * (f.value * u);
        out[i] = scaled<F>(scale, g, u);
      } else {
        to_gate[i] = d * scale * f.derivative;
        sum += d * f.value;
        out[i] = scaled<F>(scale, g);
      }
    }
    store(p.dgate + row * p.dx_ld + j, rounded<T>(to_gate));
    if constexpr (kGated) store(p.dup + row * p.dx_ld + j, rounded<T>(to_up));
    store(p.y + row * p.y_ld + j, rounded<T>(out));
  }
  sum = kThreads == 32 ? warp_sum(sum) : block_sum(sum, shared);
  if (thread == 0) p.dscale[row] = sum;
}

template <class F, class T, bool kGated, int N>
void launch_backward(cudaStream_t stream, const ScaledBackward<T>& p) {
  if (p.rows == 0) return;
  if (p.columns <= 64 * 32) {
    scaled_backward<F, T, kGated, N, 32><<<blocks_for(p.rows, 8), 256, 0, stream>>>(p);
  } else {
    scaled_backward<F, T, kGated, N, 256><<<static_cast<unsigned>(p.rows), 256, 0, stream>>>(p);
  }
  launched("run scaled_activation_backward");
}

// The second half is the first where there is none.
struct Halves {
  Halves(const Tensor& x, bool gated)
      : gate(gated ? x.slice_columns(0, x.columns() / 2) : x),
        up(gated ? x.slice_columns(x.columns() / 2, x.columns() / 2) : x) {}
  Tensor gate, up;
};

}  // namespace

void scaled_activation(Lane& lane, Activation kind, bool gated, const Tensor& x, const Tensor& scale,
                       const Tensor& y) {
  const Halves in(x, gated);
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    constexpr int N = kPerVector<T>;
    const bool vectors = vectorizable(in.gate, N) && vectorizable(in.up, N) && vectorizable(y, N);
    const auto run = [&]<bool kGated>() {
      for_tokens<N>(stream(lane), "run scaled_activation",
                    ScaledForward<F, T, kGated>{data<T>(in.gate), data<T>(in.up), x.ld(), data<Acc<T>>(scale),
                                                data<T>(y), y.ld()},
                    y.rows(), 1, y.columns(), vectors);
    };
    gated ? run.template operator()<true>() : run.template operator()<false>();
  });
}

void scaled_activation_backward(Lane& lane, Activation kind, bool gated, const Tensor& dy, const Tensor& x,
                                const Tensor& scale, const ScaledActivationGradient& gradient) {
  const Halves in(x, gated), out(gradient.dx, gated);
  const Tensor& y = gradient.y;
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    constexpr int N = kPerVector<T>;
    const ScaledBackward<T> p{data<T>(dy),
                              data<T>(in.gate),
                              data<T>(in.up),
                              dy.ld(),
                              x.ld(),
                              data<Acc<T>>(scale),
                              data<T>(out.gate),
                              data<T>(out.up),
                              data<T>(y),
                              gradient.dx.ld(),
                              y.ld(),
                              data<Acc<T>>(gradient.dscale),
                              dy.rows(),
                              static_cast<int>(dy.columns())};
    const bool vectors = vectorizable(in.gate, N) && vectorizable(in.up, N) && vectorizable(dy, N) &&
                         vectorizable(out.gate, N) && vectorizable(out.up, N) && vectorizable(y, N);
    const auto run = [&]<bool kGated>() {
      vectors ? launch_backward<F, T, kGated, N>(stream(lane), p)
              : launch_backward<F, T, kGated, 1>(stream(lane), p);
    };
    gated ? run.template operator()<true>() : run.template operator()<false>();
  });
}

}  // namespace weft::ops::cuda
