// Norms in one pass over memory: a row stays in the registers of a warp or of a block, as raw vectors.
// Rows that cannot be read by vectors, longer ones, and doubles go through plain loops.
#include <algorithm>

#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

constexpr Index kLongest = 16384;  // elements of a row kept in registers
constexpr int kPlainThreads = 256;

__device__ inline float inverse_root(float x) {
  return 1.0f / sqrtf(x);
}
__device__ inline double inverse_root(double x) {
  return 1.0 / sqrt(x);
}

// --- forward

template <class T>
struct Forward {
  const T* x;
  const T* weight;
  const T* bias;
  T* y;
  Acc<T>* mean;
  Acc<T>* rstd;
  Index rows, ld_x, ld_y;
  int h;
  Acc<T> eps;
};

constexpr int kHeld = 32;  // elements of a row that a thread of the forward pass holds

// kThreads to a row: 32 (four rows to a block), or the whole block.
template <class T, int kThreads, bool kCentred>
__global__ void __launch_bounds__(kThreads == 32 ? 128 : kThreads) norm_rows(const Forward<T> f) {
  using A = Acc<T>;
  constexpr int N = kPerVector<T>, kVectors = kHeld / N;
  __shared__ A shared[32];
  const int t = threadIdx.x % kThreads;
  const Index row = kThreads == 32 ? Index{blockIdx.x} * 4 + threadIdx.x / 32 : Index{blockIdx.x};
  if (row >= f.rows) return;  // a whole warp
  const auto sum_of = [&](A value) {
    if constexpr (kThreads == 32) {
      return warp_sum(value);
    } else {
      return block_sum(value, shared);
    }
  };
  const T* in = f.x + row * f.ld_x;
  Vec<T, N> x[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int c = (i * kThreads + t) * N;
    x[i] = c < f.h ? load<N>(in + c) : Vec<T, N>{};
  }
  A mean = 0;
  if constexpr (kCentred) {
    A sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int e = 0; e < N; ++e) sum += to_acc(x[i].v[e]);
    }
    mean = sum_of(sum) / static_cast<A>(f.h);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) hold_packed(x[i]);
  }
  A squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if ((i * kThreads + t) * N < f.h) {
#pragma unroll
      for (int e = 0; e < N; ++e) {
        const A d = to_acc(x[i].v[e]) - mean;
        squares += d * d;
      }
    }
  }
  const A rstd = inverse_root(sum_of(squares) / static_cast<A>(f.h) + f.eps);
  T* out = f.y + row * f.ld_y;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    hold_packed(x[i]);
    const int c = (i * kThreads + t) * N;
    if (c < f.h) {
      const Vec<T, N> w = load<N>(f.weight + c);
      A y[N];
      if constexpr (kCentred) {
        const Vec<T, N> b = load<N>(f.bias + c);
#pragma unroll
        for (int e = 0; e < N; ++e) {
          y[e] = (to_acc(x[i].v[e]) - mean) * rstd * to_acc(w.v[e]) + to_acc(b.v[e]);
        }
      } else {
#pragma unroll
        for (int e = 0; e < N; ++e) y[e] = to_acc(x[i].v[e]) * rstd * to_acc(w.v[e]);
      }
      store<N>(out + c, rounded<T, N>(y));
    }
  }
  if (t == 0) {
    if constexpr (kCentred) f.mean[row] = mean;
    f.rstd[row] = rstd;
  }
}

template <class T, bool kCentred>
__global__ void __launch_bounds__(kPlainThreads) norm_rows_plain(const Forward<T> f) {
  using A = Acc<T>;
  __shared__ A shared[32];
  const Index row = blockIdx.x;
  const T* in = f.x + row * f.ld_x;
  A mean = 0;
  if constexpr (kCentred) {
    A sum = 0;
    for (int c = threadIdx.x; c < f.h; c += kPlainThreads) sum += to_acc(in[c]);
    mean = block_sum(sum, shared) / static_cast<A>(f.h);
  }
  A squares = 0;
  for (int c = threadIdx.x; c < f.h; c += kPlainThreads) {
    const A d = to_acc(in[c]) - mean;
    squares += d * d;
  }
  const A rstd = inverse_root(block_sum(squares, shared) / static_cast<A>(f.h) + f.eps);
  T* out = f.y + row * f.ld_y;
  for (int c = threadIdx.x; c < f.h; c += kPlainThreads) {
    A y = (to_acc(in[c]) - mean) * rstd * to_acc(f.weight[c]);
    if constexpr (kCentred) y += to_acc(f.bias[c]);
    out[c] = from_acc<T>(y);
  }
  if (threadIdx.x == 0) {
    if constexpr (kCentred) f.mean[row] = mean;
    f.rstd[row] = rstd;
  }
}

template <class T, int kThreads, bool kCentred>
void launch_forward(cudaStream_t stream, const Forward<T>& f) {
  if constexpr (kThreads == 32) {
    norm_rows<T, 32, kCentred><<<blocks_for(f.rows, 4), 128, 0, stream>>>(f);
  } else {
    norm_rows<T, kThreads, kCentred><<<blocks_for(f.rows, 1), kThreads, 0, stream>>>(f);
  }
}

template <class T, bool kCentred>
void forward(cudaStream_t stream, const Forward<T>& f, bool vectors) {
  if constexpr (sizeof(T) <= 4) {
    if (vectors && f.h <= kLongest) {
      if (f.h <= 32 * kHeld) {
        launch_forward<T, 32, kCentred>(stream, f);
      } else if (f.h <= 128 * kHeld) {
        launch_forward<T, 128, kCentred>(stream, f);
      } else if (f.h <= 256 * kHeld) {
        launch_forward<T, 256, kCentred>(stream, f);
      } else {
        launch_forward<T, 512, kCentred>(stream, f);
      }
      return;
    }
  }
  norm_rows_plain<T, kCentred><<<blocks_for(f.rows, 1), kPlainThreads, 0, stream>>>(f);
}

// --- backward: with x̂ = (x − mean) · rstd and g = dy · w,
//   dx = rstd · (g − x̂ · mean(g x̂) − mean(g)) (+ dresidual),  dw = Σ dy x̂,  db = Σ dy,
// the terms of the mean for LayerNorm only. A block takes a range of rows and keeps its sums in registers.

template <class T>
struct Backward {
  const T* dy;
  const T* x;
  const T* weight;
  const T* dresidual;  // or null
  const Acc<T>* mean;
  const Acc<T>* rstd;
  T* dx;
  Acc<T>* weight_sums;  // [chunks, h]
  Acc<T>* bias_sums;
  Index rows, ld_dy, ld_x, ld_dresidual, ld_dx;
  int h;
};

constexpr int block_of(int threads) {
  return threads > 256 ? threads : 256;
}
// Two blocks of 256 share a multiprocessor where their registers allow it.
template <class T, int kThreads, int kElements, bool kCentred>
constexpr int kResident = kThreads <= 256 && sizeof(T) == 2 && !(kCentred && kElements == 32) ? 2 : 1;

// What a thread has of a row: kElements as vectors, one of every kThreads.
template <class T, int kElements>
struct Row {
  static constexpr int kVectors = kElements / kPerVector<T>;
  Vec<T, kPerVector<T>> x[kVectors], dy[kVectors], residual[kVectors];
  Acc<T> mean, rstd;
};

template <int kThreads, bool kCentred, class T, int kElements>
__device__ __forceinline__ void fetch(const Backward<T>& b, Index row, int t, Row<T, kElements>& r) {
  constexpr int N = kPerVector<T>, kVectors = kElements / N;
  const T *x = b.x + row * b.ld_x, *dy = b.dy + row * b.ld_dy;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int c = (i * kThreads + t) * N;
    r.x[i] = c < b.h ? load<N>(x + c) : Vec<T, N>{};
    r.dy[i] = c < b.h ? load<N>(dy + c) : Vec<T, N>{};
  }
  if (b.dresidual != nullptr) {
    const T* more = b.dresidual + row * b.ld_dresidual;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * kThreads + t) * N;
      if (c < b.h) r.residual[i] = load<N>(more + c);
    }
  }
  r.mean = kCentred ? b.mean[row] : Acc<T>{0};
  r.rstd = b.rstd[row];
}

// Two sums over the threads of a row, through `reduced` where they are several warps; the second for
// LayerNorm only.
template <int kThreads, bool kCentred, class A>
__device__ __forceinline__ void sum_both(A (*reduced)[2], int t, A& first, A& second) {
  first = warp_sum(first);
  if constexpr (kCentred) second = warp_sum(second);
  if constexpr (kThreads > 32) {
    if (t % 32 == 0) {
      reduced[t / 32][0] = first;
      if constexpr (kCentred) reduced[t / 32][1] = second;
    }
    __syncthreads();
    first = second = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) {
      first += reduced[w][0];
      if constexpr (kCentred) second += reduced[w][1];
    }
  }
}

// kThreads to a row, each with kElements of it; groups of threads take rows in turn.
template <class T, int kThreads, int kElements, bool kCentred>
__global__ void __launch_bounds__(block_of(kThreads), (kResident<T, kThreads, kElements, kCentred>))
    norm_backward_rows(const Backward<T> b) {
  using A = Acc<T>;
  constexpr int N = kPerVector<T>, kVectors = kElements / N;
  constexpr int kGroups = block_of(kThreads) / kThreads;
  // The next row is fetched while this one is summed, where there are registers for it.
  constexpr bool kAhead = sizeof(T) == 2 && kElements <= 16;
  const int t = threadIdx.x % kThreads, group = threadIdx.x / kThreads;
  const Index chunk = blockIdx.x, chunks = gridDim.x;
  const Index begin = b.rows * chunk / chunks, end = b.rows * (chunk + 1) / chunks;
  const bool residual = b.dresidual != nullptr;

  // One barrier for each row: the buffers of two rows alternate. All groups meet at it: barriers of single
  // groups gain nothing, and compute-sanitizer does not know them.
  __shared__ A reduced[2][kGroups][kThreads / 32][2];
  int parity = 0;
  A weight_sums[kElements] = {}, bias_sums[kCentred ? kElements : 1] = {};
  Row<T, kElements> now;
  Index row = begin + group;
  if (row < end) fetch<kThreads, kCentred>(b, row, t, now);
#pragma unroll 1
  for (Index first = begin; first < end; first += kGroups) {
    const bool mine = kGroups == 1 || row < end;  // the last rows may be fewer than the groups
    const Index following = row + kGroups;
    Row<T, kElements> next;
    if constexpr (kAhead) {
      if (following < end) fetch<kThreads, kCentred>(b, following, t, next);
    }
    A along = 0, mean_g = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * kThreads + t) * N;
      if (c < b.h) {
        const Vec<T, N> w = load<N>(b.weight + c);
#pragma unroll
        for (int e = 0; e < N; ++e) {
          const A g = to_acc(now.dy[i].v[e]) * to_acc(w.v[e]);
          along += g * ((to_acc(now.x[i].v[e]) - now.mean) * now.rstd);
          mean_g += g;
        }
      }
    }
    sum_both<kThreads, kCentred>(reduced[parity][group], t, along, mean_g);
    parity ^= 1;
    along /= static_cast<A>(b.h);
    mean_g = kCentred ? mean_g / static_cast<A>(b.h) : A{0};
    T* dx = b.dx + row * b.ld_dx;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      hold_packed(now.x[i]);
      hold_packed(now.dy[i]);
      const int c = (i * kThreads + t) * N;
      if (c < b.h && mine) {
        const Vec<T, N> w = load<N>(b.weight + c);
        A out[N];
#pragma unroll
        for (int e = 0; e < N; ++e) {
          const A d = to_acc(now.dy[i].v[e]), normal = (to_acc(now.x[i].v[e]) - now.mean) * now.rstd;
          out[e] = now.rstd * (d * to_acc(w.v[e]) - normal * along - mean_g);
          weight_sums[i * N + e] += d * normal;
          if constexpr (kCentred) bias_sums[i * N + e] += d;
        }
        if (residual) {
#pragma unroll
          for (int e = 0; e < N; ++e) out[e] += to_acc(now.residual[i].v[e]);
        }
        store<N>(dx + c, rounded<T, N>(out));
      }
    }
    row = following;
    if constexpr (kAhead) {
      now = next;
    } else {
      if (row < end) fetch<kThreads, kCentred>(b, row, t, now);
    }
  }

  A* const weight_out = b.weight_sums + chunk * b.h;
  A* const bias_out = kCentred ? b.bias_sums + chunk * b.h : nullptr;
  if constexpr (kGroups == 1) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * kThreads + t) * N;
      if (c < b.h) {
#pragma unroll
        for (int e = 0; e < N; ++e) {
          weight_out[c + e] = weight_sums[i * N + e];
          if constexpr (kCentred) bias_out[c + e] = bias_sums[i * N + e];
        }
      }
    }
  } else {
    __shared__ A sums[kCentred ? 2 : 1][kThreads * kElements];
#pragma unroll 1
    for (int g = 0; g < kGroups; ++g) {  // in order
      if (group == g) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int c = (i * kThreads + t) * N;
#pragma unroll
          for (int e = 0; e < N; ++e) {
            sums[0][c + e] = g == 0 ? weight_sums[i * N + e] : sums[0][c + e] + weight_sums[i * N + e];
            if constexpr (kCentred) {
              sums[1][c + e] = g == 0 ? bias_sums[i * N + e] : sums[1][c + e] + bias_sums[i * N + e];
            }
          }
        }
      }
      __syncthreads();
    }
    for (int c = threadIdx.x; c < b.h; c += block_of(kThreads)) {
      weight_out[c] = sums[0][c];
      if constexpr (kCentred) bias_out[c] = sums[1][c];
    }
  }
}

// Sums are kept in the scratch itself: each of its elements belongs to one thread.
template <class T, bool kCentred>
__global__ void __launch_bounds__(kPlainThreads) norm_backward_rows_plain(const Backward<T> b) {
  using A = Acc<T>;
  __shared__ A shared[32];
  const Index chunk = blockIdx.x, chunks = gridDim.x;
  const Index begin = b.rows * chunk / chunks, end = b.rows * (chunk + 1) / chunks;
  A* const weight_sums = b.weight_sums + chunk * b.h;
  A* const bias_sums = kCentred ? b.bias_sums + chunk * b.h : nullptr;
  for (int c = threadIdx.x; c < b.h; c += kPlainThreads) {
    weight_sums[c] = 0;
    if constexpr (kCentred) bias_sums[c] = 0;
  }
  for (Index row = begin; row < end; ++row) {
    const T *x = b.x + row * b.ld_x, *dy = b.dy + row * b.ld_dy;
    const A mean = kCentred ? b.mean[row] : A{0}, rstd = b.rstd[row];
    A along = 0, mean_g = 0;
    for (int c = threadIdx.x; c < b.h; c += kPlainThreads) {
      const A g = to_acc(dy[c]) * to_acc(b.weight[c]);
      along += g * ((to_acc(x[c]) - mean) * rstd);
      mean_g += g;
    }
    along = block_sum(along, shared) / static_cast<A>(b.h);
    mean_g = kCentred ? block_sum(mean_g, shared) / static_cast<A>(b.h) : A{0};
    for (int c = threadIdx.x; c < b.h; c += kPlainThreads) {
      const A d = to_acc(dy[c]), normal = (to_acc(x[c]) - mean) * rstd;
      A value = rstd * (d * to_acc(b.weight[c]) - normal * along - mean_g);
      if (b.dresidual != nullptr) value += to_acc(b.dresidual[row * b.ld_dresidual + c]);
      b.dx[row * b.ld_dx + c] = from_acc<T>(value);
      weight_sums[c] += d * normal;
      if constexpr (kCentred) bias_sums[c] += d;
    }
  }
}

template <class T, int kThreads, int kElements, bool kCentred>
void launch_backward(cudaStream_t stream, const Backward<T>& b, unsigned chunks) {
  norm_backward_rows<T, kThreads, kElements, kCentred><<<chunks, block_of(kThreads), 0, stream>>>(b);
}

template <class T, bool kCentred>
void backward(cudaStream_t stream, const Backward<T>& b, unsigned chunks, bool vectors) {
  if constexpr (sizeof(T) <= 4) {
    if (vectors && b.h <= kLongest) {
      if (b.h <= 512) {
        launch_backward<T, 32, 16, kCentred>(stream, b, chunks);
      } else if (b.h <= 768) {
        launch_backward<T, 32, 24, kCentred>(stream, b, chunks);
      } else if (b.h <= 1024) {
        launch_backward<T, 32, 32, kCentred>(stream, b, chunks);
      } else if (b.h <= 2048) {
        launch_backward<T, 128, 16, kCentred>(stream, b, chunks);
      } else if (b.h <= 4096) {
        launch_backward<T, 256, 16, kCentred>(stream, b, chunks);
      } else if (b.h <= 8192) {
        launch_backward<T, 256, 32, kCentred>(stream, b, chunks);
      } else {
        launch_backward<T, 512, 32, kCentred>(stream, b, chunks);
      }
      return;
    }
  }
  norm_backward_rows_plain<T, kCentred><<<chunks, kPlainThreads, 0, stream>>>(b);
}

}  // namespace

void norm(Lane& lane, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
          const NormResult& result) {
  if (x.elems() == 0) return;
  visit_floating(x.dtype(), [&]<class T>(T) {
    using A = Acc<T>;
    constexpr int N = kPerVector<T>;
    const bool centred = result.mean.defined();
    const bool vectors = vectorizable(x, N) && vectorizable(result.y, N) && vectorizable(weight, N) &&
                         (!centred || vectorizable(bias, N));
    const Forward<T> f{data<T>(x),
                       data<T>(weight),
                       centred ? data<T>(bias) : nullptr,
                       data<T>(result.y),
                       centred ? data<A>(result.mean) : nullptr,
                       data<A>(result.rstd),
                       x.rows(),
                       x.ld(),
                       result.y.ld(),
                       static_cast<int>(x.columns()),
                       static_cast<A>(eps)};
    centred ? forward<T, true>(stream(lane), f, vectors) : forward<T, false>(stream(lane), f, vectors);
    launched("run norm");
  });
}

std::int64_t norm_backward_chunks(const Lane&, std::int64_t rows, std::int64_t columns) {
  const Index most = columns > 8192 ? kPlannedMultiprocessors : 2 * kPlannedMultiprocessors;
  return std::min(most, std::max<Index>(1, (rows + 7) / 8));
}

void norm_backward(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                   const Tensor& rstd, const Tensor& dresidual, const NormGradients& gradients,
                   const Tensor& dx, const Tensor& scratch) {
  const Index h = x.columns();
  if (h == 0) return;
  visit_floating(x.dtype(), [&]<class T>(T) {
    using A = Acc<T>;
    constexpr int N = kPerVector<T>;
    const bool centred = mean.defined();
    const bool vectors = vectorizable(x, N) && vectorizable(dy, N) && vectorizable(dresidual, N) &&
                         vectorizable(weight, N) && vectorizable(dx, N);
    const Index chunks = norm_backward_chunks(lane, x.rows(), h);
    A* const weight_sums = data<A>(scratch);
    A* const bias_sums = centred ? weight_sums + chunks * h : nullptr;
    const Backward<T> b{data<T>(dy),
                        data<T>(x),
                        data<T>(weight),
                        dresidual.defined() ? data<T>(dresidual) : nullptr,
                        centred ? data<A>(mean) : nullptr,
                        data<A>(rstd),
                        data<T>(dx),
                        weight_sums,
                        bias_sums,
                        x.rows(),
                        dy.ld(),
                        x.ld(),
                        dresidual.defined() ? dresidual.ld() : 0,
                        dx.ld(),
                        static_cast<int>(h)};
    const auto grid = static_cast<unsigned>(chunks);
    centred ? backward<T, true>(stream(lane), b, grid, vectors)
            : backward<T, false>(stream(lane), b, grid, vectors);
    launched("run norm_backward");
    const auto add = [&](A* sums, const Tensor& gradient) {
      if (!gradient.defined()) return;  // frozen
      add_partials(stream(lane), sums, chunks, h, gradients.beta, data<A>(gradient), "run norm_backward");
    };
    add(weight_sums, gradients.weight);
    if (centred) add(bias_sums, gradients.bias);
  });
}

}  // namespace weft::ops::cuda
