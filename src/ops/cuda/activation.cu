#include "ops/cuda/activation_function.cuh"
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/spans.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

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
  __device__ Vec<T, N> gradient(const In<N>& in) const {
    Vec<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      out.v[i] = from_acc<T>(to_acc(in.dy.v[i]) * F::derivative(to_acc(in.x.v[i])));
    }
    return out;
  }
  template <int N>
  __device__ void put(Index t, Index j, const In<N>& in, const Vec<T, N>& out) const {
    store(dx + t * dx_ld + j, out);
    if constexpr (kAgain) Forward<F, T>{x, x_ld, y, y_ld}.run(t, 0, j, in.x);
  }
  template <int N>
  __device__ void run(Index t, Index, Index j, const In<N>& in) const {
    put<N>(t, j, in, gradient<N>(in));
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

// activation_again with the column sums of dx: the tiles of bias_gradient.cu.
constexpr int kSumWarps = 8;
template <class F, class T, int N>
__global__ void __launch_bounds__(32 * kSumWarps)
    again_with_sums(const Backward<F, T, true> op, Index rows, Index columns, Acc<T>* __restrict__ partial) {
  using A = Acc<T>;
  constexpr int kRows = 2;  // that a warp has under way
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Index first = Index{blockIdx.x} * (32 * N), column = first + lane * N;
  const Index chunk = blockIdx.y, chunks = gridDim.y;
  const Index end = rows * (chunk + 1) / chunks;
  A sums[N] = {};
  if (column < columns) {
    for (Index row = rows * chunk / chunks + warp; row < end; row += kRows * kSumWarps) {
      decltype(op.template load<N>(row, 0, column)) in[kRows];
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        if (row + u * kSumWarps < end) in[u] = op.template load<N>(row + u * kSumWarps, 0, column);
      }
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        if (row + u * kSumWarps < end) {
          const Vec<T, N> out = op.template gradient<N>(in[u]);
#pragma unroll
          for (int e = 0; e < N; ++e) sums[e] += to_acc(out.v[e]);
          op.template put<N>(row + u * kSumWarps, column, in[u], out);
        }
      }
    }
  }
  write_partials<kSumWarps>(sums, first, columns, partial + chunk * columns);
}

template <class F, class T, int N>
void launch_again_with_sums(cudaStream_t stream, const Tensor& dy, const Tensor& x,
                            const ActivationAgain& again, Index chunks, Acc<T>* partial) {
  const Backward<F, T, true> op{data<T>(dy),       data<T>(x),    dy.ld(),          x.ld(),
                                data<T>(again.dx), again.dx.ld(), data<T>(again.y), again.y.ld()};
  const dim3 grid(blocks_for(x.columns(), 32 * N), static_cast<unsigned>(chunks));
  again_with_sums<F, T, N><<<grid, 32 * kSumWarps, 0, stream>>>(op, x.rows(), x.columns(), partial);
  launched("run activation_again");
}

// The halves of the last dimension: views whose rows lie apart.
struct Halves {
  explicit Halves(const Tensor& x)
      : gate(x.slice_columns(0, x.columns() / 2)), up(x.slice_columns(x.columns() / 2, x.columns() / 2)) {}
  Tensor gate, up;
};

}  // namespace

void activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y) {
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(stream(lane), "run activation",
                                Forward<F, T>{data<T>(x), x.ld(), data<T>(y), y.ld()}, x, y);
  });
}

void activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(
        stream(lane), "run activation_backward",
        Backward<F, T>{data<T>(dy), data<T>(x), dy.ld(), x.ld(), data<T>(dx), dx.ld()}, x, dy, dx);
  });
}

void gated_activation(Lane& lane, Activation kind, const Tensor& x, const Tensor& y) {
  const Halves in(x);
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(
        stream(lane), "run gated_activation",
        GatedForward<F, T>{data<T>(in.gate), data<T>(in.up), x.ld(), data<T>(y), y.ld()}, y, in.gate, in.up);
  });
}

void gated_activation_backward(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                               const Tensor& dx) {
  const Halves in(x), out(dx);
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(stream(lane), "run gated_activation_backward",
                                GatedBackward<F, T>{data<T>(dy), data<T>(in.gate), data<T>(in.up), dy.ld(),
                                                    x.ld(), data<T>(out.gate), data<T>(out.up), dx.ld()},
                                dy, in.gate, in.up, out.gate, out.up);
  });
}

void activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                      const ActivationAgain& again, const Tensor& db, float beta, const Tensor& scratch) {
  const Tensor &dx = again.dx, &y = again.y;
  if (db.defined() && x.elems() > 0) {
    visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
      const Index chunks = bias_gradient_chunks(lane, x.rows(), x.columns());
      Acc<T>* partial = data<Acc<T>>(scratch);
      constexpr int N = kPerVector<T>;
      const bool vectors =
          vectorizable(x, N) && vectorizable(dy, N) && vectorizable(dx, N) && vectorizable(y, N);
      vectors ? launch_again_with_sums<F, T, N>(stream(lane), dy, x, again, chunks, partial)
              : launch_again_with_sums<F, T, 1>(stream(lane), dy, x, again, chunks, partial);
      add_partials(stream(lane), partial, chunks, x.columns(), beta, data<Acc<T>>(db),
                   "run activation_again");
    });
    return;
  }
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(stream(lane), "run activation_again",
                                Backward<F, T, true>{data<T>(dy), data<T>(x), dy.ld(), x.ld(), data<T>(dx),
                                                     dx.ld(), data<T>(y), y.ld()},
                                x, dy, dx, y);
  });
  if (db.defined()) bias_gradient(lane, dx, db, beta, scratch);  // of no rows
}

void gated_activation_again(Lane& lane, Activation kind, const Tensor& dy, const Tensor& x,
                            const ActivationAgain& again) {
  const Halves in(x), out(again.dx);
  const Tensor &dx = again.dx, &y = again.y;
  visit_function(kind, x.dtype(), [&]<class F, class T>(F, T) {
    for_elements<kPerVector<T>>(
        stream(lane), "run gated_activation_again",
        GatedBackward<F, T, true>{data<T>(dy), data<T>(in.gate), data<T>(in.up), dy.ld(), x.ld(),
                                  data<T>(out.gate), data<T>(out.up), dx.ld(), data<T>(y), y.ld()},
        dy, in.gate, in.up, out.gate, out.up, y);
  });
}

}  // namespace weft::ops::cuda
