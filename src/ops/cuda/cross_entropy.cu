// Softmax cross-entropy: a block to a row. Exponentials are exp2 of (x − maximum) · log2 e, the difference
// first, so that large logits keep their digits.
#include <algorithm>
#include <limits>

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // vectors that a thread has under way
// Shared memory for the row of the fused kernel: two blocks to a multiprocessor, or one.
constexpr int kHalf = 112 << 10, kWhole = 224 << 10;

// exp(x) for x ≤ 0 about; below 2⁻¹²⁶ it is 0.
__device__ inline float exponential(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504088896341f));
  return y;
}
__device__ inline double exponential(double x) {
  return exp(x);
}
// The larger; a NaN is not.
__device__ inline float larger(float x, float y) {
  return fmaxf(x, y);
}
__device__ inline double larger(double x, double y) {
  return fmax(x, y);
}
template <class A>
__device__ inline A lowest() {
  return -std::numeric_limits<A>::infinity();
}

// labels [b, s] of row r of [s, b].
struct RowLabels {
  explicit RowLabels(const Tensor& labels)
      : data(labels.data<std::int32_t>()),
        batch(static_cast<unsigned>(labels.dim(0))),
        length(static_cast<unsigned>(labels.ld())) {}
  __device__ int operator[](unsigned r) const { return data[r % batch * length + r / batch]; }
  const std::int32_t* data;
  unsigned batch, length;
};

template <class T>
struct Logits {
  Logits(const Tensor& logits, const Tensor& label_ids, const CrossEntropyOptions& options)
      : data(cuda::data<T>(logits)),
        ld(logits.ld()),
        rows(logits.rows()),
        columns(static_cast<int>(logits.columns())),
        real(static_cast<int>(std::clamp<Index>(options.vocabulary - options.first, 0, logits.columns()))),
        first(options.first),
        labels(label_ids) {}
  // Column of the row's label, or −1: ignored, or not here.
  __device__ int column_of(int label) const {
    const Index column = label < 0 ? -1 : label - first;
    return column >= 0 && column < real ? static_cast<int>(column) : -1;
  }
  T* data;
  Index ld, rows;
  int columns, real;  // real: vocabulary, not padding
  Index first;
  RowLabels labels;
};

template <class A>
struct RowSums {
  A max, exp_sum;
  double sum;
};

// Over the columns [0, n) of a row, by the whole block; every thread gets the result. keep(j, vector) is
// called with each vector that this thread has read. A row of −infinities alone has the sum 0.
template <class T, int N, class Keep>
__device__ RowSums<Acc<T>> sums_of_row(const T* __restrict__ row, int n, bool with_sum, const Keep& keep) {
  using A = Acc<T>;
  A max = lowest<A>(), exp_sum = 0, sum = 0;
  const int vectors = n / N, step = blockDim.x;
  const auto base_of = [](A m) { return m == lowest<A>() ? A{0} : m; };
#pragma unroll 1
  for (int j = threadIdx.x; j < vectors; j += kUnroll * step) {
    Vec<T, N> v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * step < vectors) v[u] = load<N>(row + (j + u * step) * N);
    }
    A next = max;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * step < vectors) {
        keep(j + u * step, v[u]);
#pragma unroll
        for (int e = 0; e < N; ++e) next = larger(next, to_acc(v[u].v[e]));
      }
    }
    const A base = base_of(next);
    exp_sum *= exponential(max - base);
    max = next;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * step < vectors) {
        hold_packed(v[u]);
        A part = 0;
#pragma unroll
        for (int e = 0; e < N; ++e) part += exponential(to_acc(v[u].v[e]) - base);
        exp_sum += part;
        if (with_sum) {
#pragma unroll
          for (int e = 0; e < N; ++e) sum += to_acc(v[u].v[e]);
        }
      }
    }
  }
  const int last = vectors * N + threadIdx.x;
  if (static_cast<int>(threadIdx.x) < N && last < n) {
    const A x = to_acc(row[last]), next = larger(max, x), base = base_of(next);
    exp_sum = exp_sum * exponential(max - base) + exponential(x - base);
    max = next;
    sum += x;
  }

  __shared__ A maxima[32];
  __shared__ A numbers[32];
  __shared__ double wide[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const A of_warp = warp_max(max);
  if (lane == 0) maxima[warp] = of_warp;
  __syncthreads();
  RowSums<A> result;
  result.max = warp_max(lane < warps ? maxima[lane] : lowest<A>());
  result.exp_sum = block_sum(exp_sum * exponential(max - base_of(result.max)), numbers);
  result.sum = with_sum ? block_sum(static_cast<double>(sum), wide) : 0.0;
  return result;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    local_kernel(const Logits<T> x, bool with_sum, Acc<T>* __restrict__ max, Acc<T>* __restrict__ sums) {
  using A = Acc<T>;
  const unsigned r = blockIdx.x;
  const T* row = x.data + r * x.ld;
  const RowSums<A> s = sums_of_row<T, N>(row, x.real, with_sum, [](int, const Vec<T, N>&) {});
  if (threadIdx.x != 0) return;
  const int column = x.column_of(x.labels[r]);
  max[r] = s.max;
  sums[r] = s.exp_sum;
  sums[x.rows + r] = column >= 0 ? to_acc(row[column]) : A{0};
  sums[2 * x.rows + r] = static_cast<A>(s.sum);
}

template <class A>
__global__ void rescale_kernel(const A* __restrict__ own, const A* __restrict__ global, A* sums, Index rows) {
  const Index r = Index{blockIdx.x} * kThreads + threadIdx.x;
  // Equal maxima need no factor (and −infinity from padding alone has none).
  if (r < rows && own[r] != global[r]) {
    if constexpr (sizeof(A) == 4) {
      sums[r] *= expf(own[r] - global[r]);
    } else {
      sums[r] *= exp(own[r] - global[r]);
    }
  }
}

struct LossOptions {
  explicit LossOptions(const CrossEntropyOptions& options)
      : alpha(options.label_smoothing), n(static_cast<double>(options.vocabulary)), z_loss(options.z_loss) {}
  // With α = label smoothing: (1 − α) nll_y + α / (n − 1) Σ_{v ≠ y} nll_v + z lse², nll_v = lse − logit_v
  __device__ double loss(double lse, double label_logit, double sum) const {
    const double nll = lse - label_logit;
    double loss = nll;
    if (alpha != 0) {
      const double others = n * lse - sum - nll;
      loss = (1 - alpha) * nll + alpha / (n - 1) * others;
    }
    return loss + z_loss * lse * lse;
  }
  double alpha, n, z_loss;
};

template <class A>
__global__ void finish_kernel(const A* __restrict__ max, const A* __restrict__ sums, const RowLabels labels,
                              const LossOptions options, Index rows, A* __restrict__ losses,
                              A* __restrict__ lses) {
  const Index r = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (r >= rows) return;
  const double lse = static_cast<double>(max[r]) + log(static_cast<double>(sums[r]));
  lses[r] = static_cast<A>(lse);
  losses[r] = labels[static_cast<unsigned>(r)] < 0
                  ? A{0}
                  : static_cast<A>(options.loss(lse, static_cast<double>(sums[rows + r]),
                                                static_cast<double>(sums[2 * rows + r])));
}

// d loss / d logit_v = softmax_v (1 + 2 z lse) − (v = y ? 1 − α : α / (n − 1)), times the scale
struct GradientOptions {
  GradientOptions(const CrossEntropyOptions& options, double factor)
      : scale(factor),
        z_loss(options.z_loss),
        on(factor * (1 - options.label_smoothing)),
        off(options.label_smoothing == 0
                ? 0.0
                : factor * options.label_smoothing / static_cast<double>(options.vocabulary - 1)) {}
  double scale, z_loss, on, off;
};

template <class A>
struct RowGradient {
  __device__ RowGradient(const GradientOptions& options, A row_lse)
      : lse(row_lse),
        factor(static_cast<A>(options.scale * (1 + 2 * options.z_loss * static_cast<double>(row_lse)))),
        on(static_cast<A>(options.on)),
        off(static_cast<A>(options.off)) {}
  __device__ A operator()(A x, bool at_label) const {
    return exponential(x - lse) * factor - (at_label ? on : off);
  }
  A lse, factor, on, off;
};

// The gradient in place of a vector from column c on.
template <class T, int N>
__device__ inline void write_gradient(const Vec<T, N>& x, const RowGradient<Acc<T>>& gradient, int c,
                                      int label, T* row) {
  Acc<T> out[N];
#pragma unroll
  for (int e = 0; e < N; ++e) out[e] = gradient(to_acc(x.v[e]), false);
  if (label >= c && label < c + N) {  // one thread of the block
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (c + e == label) out[e] = gradient(to_acc(x.v[e]), true);
    }
  }
  store<N>(row + c, rounded<T, N>(out));
}

// What is left of a row past its last whole vector: at most N − 1 logits, and padding. `x` holds this
// thread's logit.
template <class T, int N>
__device__ inline void write_rest(T x, const RowGradient<Acc<T>>& gradient, int n, int columns, int label,
                                  T* row) {
  const int last = n / N * N + threadIdx.x;
  if (static_cast<int>(threadIdx.x) < N && last < n) {
    row[last] = from_acc<T>(gradient(to_acc(x), last == label));
  }
  for (int c = n + threadIdx.x; c < columns; c += blockDim.x) row[c] = from_acc<T>(0);
}

template <class T, int N>
__device__ inline T rest_of(const T* row, int n) {
  const int last = n / N * N + threadIdx.x;
  return static_cast<int>(threadIdx.x) < N && last < n ? row[last] : T{};
}

// Rows that can be written by vectors have a whole number of them.
template <class T, int N>
__device__ inline void clear_row(T* row, int columns) {
  for (int c = threadIdx.x * N; c < columns; c += blockDim.x * N) store<N>(row + c, Vec<T, N>{});
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const Logits<T> x, const Acc<T>* __restrict__ lse, const GradientOptions options) {
  const unsigned r = blockIdx.x;
  T* row = x.data + r * x.ld;
  const int id = x.labels[r];
  if (id < 0) {
    clear_row<T, N>(row, x.columns);
    return;
  }
  const int label = x.column_of(id), vectors = x.real / N;
  const RowGradient<Acc<T>> gradient(options, lse[r]);
#pragma unroll 1
  for (int j = threadIdx.x; j < vectors; j += kUnroll * kThreads) {
    Vec<T, N> v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * kThreads < vectors) v[u] = load<N>(row + (j + u * kThreads) * N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * kThreads < vectors)
        write_gradient<T, N>(v[u], gradient, (j + u * kThreads) * N, label, row);
    }
  }
  write_rest<T, N>(rest_of<T, N>(row, x.real), gradient, x.real, x.columns, label, row);
}

// Loss and gradient. The first `kept` vectors of the row wait in shared memory, each for the thread that has
// read it; the others are read again, from L2.
template <class T, int N, int kBlock>
__global__ void __launch_bounds__(kBlock, kBlock == 512 ? 2 : 1)
    fused_kernel(const Logits<T> x, const LossOptions loss_options, const GradientOptions options, int kept,
                 Acc<T>* __restrict__ losses, Acc<T>* __restrict__ lses) {
  using A = Acc<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  auto* const shared = reinterpret_cast<Vec<T, N>*>(memory);
  const unsigned r = blockIdx.x;
  T* const row = x.data + r * x.ld;
  const int id = x.labels[r], label = x.column_of(id), vectors = x.real / N;
  // Read before any thread is past the barriers of the sums, so before anything is overwritten.
  const A label_logit = threadIdx.x == 0 && label >= 0 ? to_acc(row[label]) : A{0};
  const T rest = rest_of<T, N>(row, x.real);
  const RowSums<A> s =
      sums_of_row<T, N>(row, x.real, loss_options.alpha != 0, [&](int j, const Vec<T, N>& v) {
        if (j < kept) shared[j] = v;
      });
  const double wide_lse = static_cast<double>(s.max) + log(static_cast<double>(s.exp_sum));
  const A lse = static_cast<A>(wide_lse);
  if (threadIdx.x == 0) {
    lses[r] = lse;
    losses[r] = id < 0 ? A{0}
                       : static_cast<A>(loss_options.loss(wide_lse, static_cast<double>(label_logit),
                                                          static_cast<double>(static_cast<A>(s.sum))));
  }
  if (id < 0) {
    clear_row<T, N>(row, x.columns);
    return;
  }
  const RowGradient<A> gradient(options, lse);
  int j = threadIdx.x;
#pragma unroll 4
  for (; j < kept; j += kBlock) write_gradient<T, N>(shared[j], gradient, j * N, label, row);
#pragma unroll 1
  for (; j < vectors; j += kUnroll * kBlock) {
    Vec<T, N> v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * kBlock < vectors) v[u] = load<N>(row + (j + u * kBlock) * N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * kBlock < vectors) write_gradient<T, N>(v[u], gradient, (j + u * kBlock) * N, label, row);
    }
  }
  write_rest<T, N>(rest, gradient, x.real, x.columns, label, row);
}

template <class T, int N, int kBlock>
void launch_fused(cudaStream_t stream, const Logits<T>& x, const CrossEntropyOptions& options, double scale,
                  int kept, const CrossEntropyResult& result) {
  const int bytes = kept * static_cast<int>(sizeof(Vec<T, N>));
  check(cudaFuncSetAttribute(fused_kernel<T, N, kBlock>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "take shared memory for cross_entropy");
  fused_kernel<T, N, kBlock>
      <<<static_cast<unsigned>(x.rows), kBlock, static_cast<std::size_t>(bytes), stream>>>(
          x, LossOptions(options), GradientOptions(options, scale), kept, data<Acc<T>>(result.losses),
          data<Acc<T>>(result.lse));
}

// Calls body(T{}, N) with the vector length that these logits allow, as a constant.
template <class Body>
void visit_logits(const Tensor& logits, const Body& body) {
  visit_floating(logits.dtype(), [&]<class T>(T) {
    if (vectorizable(logits, kPerVector<T>)) {
      body(T{}, std::integral_constant<int, kPerVector<T>>{});
    } else {
      body(T{}, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace

void cross_entropy_local(Lane& lane, const Tensor& logits, const Tensor& labels,
                         const CrossEntropyOptions& options, const CrossEntropyLocal& local) {
  if (logits.rows() == 0) return;
  visit_logits(logits, [&]<class T, int N>(T, std::integral_constant<int, N>) {
    local_kernel<T, N><<<static_cast<unsigned>(logits.rows()), kThreads, 0, stream(lane)>>>(
        Logits<T>(logits, labels, options), options.label_smoothing != 0, data<Acc<T>>(local.max),
        data<Acc<T>>(local.sums));
    launched("run cross_entropy_local");
  });
}

void cross_entropy_rescale(Lane& lane, const CrossEntropyLocal& local, const Tensor& max) {
  const Index rows = max.elems();
  if (rows == 0) return;
  const auto run = [&]<class A>(A) {
    rescale_kernel<A><<<blocks_for(rows, kThreads), kThreads, 0, stream(lane)>>>(
        data<A>(local.max), data<A>(max), data<A>(local.sums), rows);
  };
  max.dtype() == DType::kF64 ? run(double{}) : run(float{});
  launched("run cross_entropy_rescale");
}

void cross_entropy_finish(Lane& lane, const Tensor& max, const Tensor& sums, const Tensor& labels,
                          const CrossEntropyOptions& options, const CrossEntropyResult& result) {
  const Index rows = max.elems();
  if (rows == 0) return;
  const auto run = [&]<class A>(A) {
    finish_kernel<A><<<blocks_for(rows, kThreads), kThreads, 0, stream(lane)>>>(
        data<A>(max), data<A>(sums), RowLabels(labels), LossOptions(options), rows, data<A>(result.losses),
        data<A>(result.lse));
  };
  max.dtype() == DType::kF64 ? run(double{}) : run(float{});
  launched("run cross_entropy_finish");
}

void cross_entropy_backward(Lane& lane, const Tensor& logits, const Tensor& lse, const Tensor& labels,
                            const CrossEntropyOptions& options, double scale) {
  if (logits.elems() == 0) return;
  visit_logits(logits, [&]<class T, int N>(T, std::integral_constant<int, N>) {
    backward_kernel<T, N><<<static_cast<unsigned>(logits.rows()), kThreads, 0, stream(lane)>>>(
        Logits<T>(logits, labels, options), data<Acc<T>>(lse), GradientOptions(options, scale));
    launched("run cross_entropy_backward");
  });
}

std::int64_t cross_entropy_fused_scratch(const Lane&, const Tensor&) {
  return 0;
}

void cross_entropy_fused(Lane& lane, const Tensor& logits, const Tensor& labels,
                         const CrossEntropyOptions& options, double scale, const CrossEntropyResult& result,
                         const Tensor&) {
  if (logits.elems() == 0) return;
  visit_logits(logits, [&]<class T, int N>(T, std::integral_constant<int, N>) {
    const Logits<T> x(logits, labels, options);
    const int vectors = x.real / N;
    constexpr int kSize = static_cast<int>(sizeof(Vec<T, N>));
    if (vectors <= kHalf / kSize) {
      launch_fused<T, N, 512>(stream(lane), x, options, scale, vectors, result);
    } else {
      launch_fused<T, N, 1024>(stream(lane), x, options, scale, std::min(vectors, kWhole / kSize), result);
    }
    launched("run cross_entropy_fused");
  });
}

}  // namespace weft::ops::cuda
