// Softmax cross-entropy: a block to a row. Exponentials are exp2 of (x − maximum) · log2 e, the difference
// first, so that large logits keep their digits.
#include <cooperative_groups.h>

#include <algorithm>
#include <limits>

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // vectors that a thread has under way
// The fused kernel: threads of a block; shared memory for its part of a row, so that six blocks fit on a
// multiprocessor, and what it may be where rows are longer than kMostBlocks of these; blocks of a cluster, of
// which every chip with clusters takes eight.
constexpr int kFusedThreads = 128;
constexpr int kPart = 33 << 10, kMostPart = 64 << 10, kMostBlocks = 8;

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

// Vectors of a row in memory.
template <class T, int N>
struct FromMemory {
  __device__ void await(int) const {}
  __device__ Vec<T, N> operator()(int j) const { return load<N>(row + j * N); }
  const T* row;
};

// A thread's part of a row's sums: exp_sum is relative to max.
template <class A>
struct ThreadSums {
  A max = lowest<A>(), exp_sum = 0, sum = 0;

  __device__ static A base_of(A m) { return m == lowest<A>() ? A{0} : m; }

  // The block's vectors [begin, end) are read(j); read.await(i) comes before the thread's i-th kUnroll of
  // them.
  template <class T, int N, bool kSum, class Read>
  __device__ void add(const Read& read, int begin, int end) {
    const int step = blockDim.x;
    int batch = 0;
#pragma unroll 1
    for (int j = begin + threadIdx.x; j < end; j += kUnroll * step) {
      Vec<T, N> v[kUnroll];
      read.await(batch++);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (j + u * step < end) v[u] = read(j + u * step);
      }
      A next = max;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (j + u * step < end) {
#pragma unroll
          for (int e = 0; e < N; ++e) next = larger(next, to_acc(v[u].v[e]));
        }
      }
      const A base = base_of(next);
      exp_sum *= exponential(max - base);
      max = next;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (j + u * step < end) {
          hold_packed(v[u]);
          A part = 0;
#pragma unroll
          for (int e = 0; e < N; ++e) part += exponential(to_acc(v[u].v[e]) - base);
          exp_sum += part;
          if constexpr (kSum) {
#pragma unroll
            for (int e = 0; e < N; ++e) sum += to_acc(v[u].v[e]);
          }
        }
      }
    }
  }
  __device__ void add(A x) {
    const A next = larger(max, x), base = base_of(next);
    exp_sum = exp_sum * exponential(max - base) + exponential(x - base);
    max = next;
    sum += x;
  }
  // Over the block; every thread gets the result. A row of −infinities alone has the sum 0.
  template <bool kSum>
  __device__ RowSums<A> of_block() const {
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
    result.sum = kSum ? block_sum(static_cast<double>(sum), wide) : 0.0;
    return result;
  }
};

// What is left of a row of n past its last whole vector: at most N − 1 elements, one to a thread.
template <class T, int N>
__device__ inline bool has_rest(int n) {
  return static_cast<int>(threadIdx.x) < N && n / N * N + static_cast<int>(threadIdx.x) < n;
}
template <class T, int N>
__device__ inline T rest_of(const T* row, int n) {
  return has_rest<T, N>(n) ? row[n / N * N + threadIdx.x] : T{};
}

template <class T, int N, bool kSum>
__global__ void __launch_bounds__(kThreads)
    local_kernel(const Logits<T> x, Acc<T>* __restrict__ max, Acc<T>* __restrict__ sums) {
  using A = Acc<T>;
  const unsigned r = blockIdx.x;
  const T* row = x.data + r * x.ld;
  ThreadSums<A> mine;
  mine.template add<T, N, kSum>(FromMemory<T, N>{row}, 0, x.real / N);
  if (has_rest<T, N>(x.real)) mine.add(to_acc(rest_of<T, N>(row, x.real)));
  const RowSums<A> s = mine.template of_block<kSum>();
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
  if (const int last = n / N * N + threadIdx.x; has_rest<T, N>(n)) {
    row[last] = from_acc<T>(gradient(to_acc(x), last == label));
  }
  for (int c = n + threadIdx.x; c < columns; c += blockDim.x) row[c] = from_acc<T>(0);
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
  const int label = x.column_of(id);
  const RowGradient<Acc<T>> gradient(options, lse[r]);
  write_gradients<T, N>(FromMemory<T, N>{row}, 0, x.real / N, gradient, label, row);
  write_rest<T, N>(rest_of<T, N>(row, x.real), gradient, x.real, x.columns, label, row);
}

// The blocks that share a row: a thread block cluster, or on chips that have none a block by itself.
struct Cluster {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __device__ unsigned blocks() const {
    return group.num_blocks();
  }
  __device__ unsigned rank() const {
    return group.block_rank();
  }
  __device__ void arrive() const {
    group.barrier_arrive();
  }
  __device__ void wait() const {
    group.barrier_wait();
  }
  template <class V>
  __device__ const V* shared_of(V* mine, unsigned block) const {
    return group.map_shared_rank(mine, block);
  }
  cooperative_groups::cluster_group group = cooperative_groups::this_cluster();
#else
  __device__ unsigned blocks() const {
    return 1;
  }
  __device__ unsigned rank() const {
    return 0;
  }
  __device__ void arrive() const {
    __syncthreads();
  }
  __device__ void wait() const {}
  template <class V>
  __device__ const V* shared_of(V* mine, unsigned) const {
    return mine;
  }
#endif
};

// A block's part of a row that a cluster of blocks shares: whole vectors, and for the last block what is
// left.
struct RowPart {
  __device__ RowPart(int real, int all, int lanes, int rank, int blocks) {
    const int vectors = real / lanes, each = (vectors + blocks - 1) / blocks;
    first = min(rank * each, vectors) * lanes;
    const bool last = rank == blocks - 1;
    const int end = min((rank + 1) * each, vectors) * lanes;
    n = (last ? real : end) - first;
    columns = (last ? all : end) - first;
  }
  int first, n, columns;  // n: of the vocabulary; columns: padding too
};

// The sums of the whole row from those of its parts, in the order of the blocks.
template <class A>
__device__ RowSums<A> sums_of_cluster(const Cluster& cluster, RowSums<A>* mine) {
  const unsigned blocks = cluster.blocks();
  RowSums<A> all{lowest<A>(), 0, 0};
  for (unsigned b = 0; b < blocks; ++b) all.max = larger(all.max, cluster.shared_of(mine, b)->max);
  const A base = all.max == lowest<A>() ? A{0} : all.max;
  for (unsigned b = 0; b < blocks; ++b) {
    const RowSums<A> part = *cluster.shared_of(mine, b);
    all.exp_sum += part.exp_sum * exponential(part.max - base);
    all.sum += part.sum;
  }
  return all;
}

// The first `count` vectors of a part of a row wait in shared memory, each for the thread that has fetched
// it. fetch() starts all copies at once, in as many groups as a thread asks for in turn, at most kGroups.
constexpr int kGroups = 8;
template <class T, int N>
struct KeptRow {
  static constexpr bool kPossible = sizeof(Vec<T, N>) == 16;  // what one copy takes
  __device__ void fetch() const {
    if constexpr (kPossible) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int j = threadIdx.x + (g * kUnroll + u) * kFusedThreads;
          if (j < count) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                             static_cast<unsigned>(__cvta_generic_to_shared(memory + j))),
                         "l"(row + j * N)
                         : "memory");
          }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
      }
    }
  }
  // Until this group is here.
  __device__ void await(int group) const {
    if constexpr (kPossible) await_one<0>(group);
  }
  __device__ Vec<T, N> operator()(int j) const {
    return memory[j];
  }

  template <int kGroup>
  __device__ static void await_one(int group) {
    if (group == kGroup) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kGroups - 1 - kGroup) : "memory");
    } else if constexpr (kGroup + 1 < kGroups) {
      await_one<kGroup + 1>(group);
    }
  }
  const T* row;
  Vec<T, N>* memory;
  int count;
};

// The gradients of the block's vectors [begin, end), which are read(j), in place.
template <class T, int N, class Read>
__device__ void write_gradients(const Read& read, int begin, int end, const RowGradient<Acc<T>>& gradient,
                                int label, T* row) {
  const int step = blockDim.x;
#pragma unroll 1
  for (int j = begin + threadIdx.x; j < end; j += kUnroll * step) {
    Vec<T, N> v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * step < end) v[u] = read(j + u * step);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * step < end) write_gradient<T, N>(v[u], gradient, (j + u * step) * N, label, row);
    }
  }
}

// Loss and gradient: a cluster of blocks to a row, so that several parts of rows find room on a
// multiprocessor and one is read while another is computed and a third written.
template <class T, int N, bool kSum>
__global__ void __launch_bounds__(kFusedThreads, 6)
    fused_kernel(const Logits<T> x, const LossOptions loss_options, const GradientOptions options, int kept,
                 Acc<T>* __restrict__ losses, Acc<T>* __restrict__ lses) {
  using A = Acc<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ RowSums<A> sums;
  const Cluster cluster;
  const unsigned blocks = cluster.blocks(), rank = cluster.rank(), r = blockIdx.x / blocks;
  const RowPart part(x.real, x.columns, N, static_cast<int>(rank), static_cast<int>(blocks));
  T* const row = x.data + r * x.ld + part.first;
  const KeptRow<T, N> here{row, reinterpret_cast<Vec<T, N>*>(memory), min(kept, part.n / N)};
  here.fetch();
  const FromMemory<T, N> elsewhere{row};  // read twice, the second time from L2
  const int id = x.labels[r], column = x.column_of(id), vectors = part.n / N;
  // Elsewhere than here, it is in no vector of this part.
  const int label = column >= part.first && column < part.first + part.n ? column - part.first : -1;
  // Read before any thread is past the barriers of the sums, so before anything is overwritten.
  const A label_logit =
      rank == 0 && threadIdx.x == 0 && column >= 0 ? to_acc(x.data[r * x.ld + column]) : A{0};
  const T rest = rest_of<T, N>(row, part.n);
  ThreadSums<A> mine;
  mine.template add<T, N, kSum>(here, 0, here.count);
  mine.template add<T, N, kSum>(elsewhere, here.count, vectors);
  if (has_rest<T, N>(part.n)) mine.add(to_acc(rest));
  const RowSums<A> own = mine.template of_block<kSum>();
  if (threadIdx.x == 0) sums = own;
  cluster.arrive();
  cluster.wait();
  const RowSums<A> s = sums_of_cluster(cluster, &sums);
  cluster.arrive();  // a block's shared memory stays until all have read it
  const double wide_lse = static_cast<double>(s.max) + log(static_cast<double>(s.exp_sum));
  const A lse = static_cast<A>(wide_lse);
  if (rank == 0 && threadIdx.x == 0) {
    lses[r] = lse;
    losses[r] = id < 0 ? A{0}
                       : static_cast<A>(loss_options.loss(wide_lse, static_cast<double>(label_logit),
                                                          static_cast<double>(static_cast<A>(s.sum))));
  }
  if (id < 0) {
    clear_row<T, N>(row, part.columns);
  } else {
    const RowGradient<A> gradient(options, lse);
    write_gradients<T, N>(here, 0, here.count, gradient, label, row);
    write_gradients<T, N>(elsewhere, here.count, vectors, gradient, label, row);
    write_rest<T, N>(rest, gradient, part.n, part.columns, label, row);
  }
  cluster.wait();
}

static_assert(kMostPart <= kGroups * kUnroll * kFusedThreads * 16);

template <class T, int N, bool kSum>
void launch_fused(const Tools& tools, const Logits<T>& x, const CrossEntropyOptions& options, double scale,
                  const CrossEntropyResult& result) {
  constexpr int kSize = static_cast<int>(sizeof(Vec<T, N>));
  const int vectors = x.real / N;
  int blocks = 1;
  while (tools.clusters && blocks < kMostBlocks && vectors * kSize > blocks * kPart) blocks *= 2;
  const int kept =
      KeptRow<T, N>::kPossible ? std::min((vectors + blocks - 1) / blocks, kMostPart / kSize) : 0;
  const auto kernel = fused_kernel<T, N, kSum>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostPart),
        "take shared memory for cross_entropy");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "take shared memory for cross_entropy");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(x.rows) * static_cast<unsigned>(blocks));
  config.blockDim = dim3(kFusedThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(kept) * kSize;
  config.stream = tools.stream;
  config.attrs = &cluster;
  config.numAttrs = tools.clusters ? 1 : 0;  // chips without clusters do not know the word
  check(cudaLaunchKernelEx(&config, kernel, x, LossOptions(options), GradientOptions(options, scale), kept,
                           data<Acc<T>>(result.losses), data<Acc<T>>(result.lse)),
        "run cross_entropy_fused");
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
    const auto kernel = options.label_smoothing != 0 ? local_kernel<T, N, true> : local_kernel<T, N, false>;
    kernel<<<static_cast<unsigned>(logits.rows()), kThreads, 0, stream(lane)>>>(
        Logits<T>(logits, labels, options), data<Acc<T>>(local.max), data<Acc<T>>(local.sums));
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
    const auto launch = options.label_smoothing != 0 ? launch_fused<T, N, true> : launch_fused<T, N, false>;
    launch(tools(lane), Logits<T>(logits, labels, options), options, scale, result);
    launched("run cross_entropy_fused");
  });
}

}  // namespace weft::ops::cuda
