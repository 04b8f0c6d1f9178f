// Backward is two kernels, each with one owner for every sum: dq by tiles of queries, dk and dv by tiles of
// keys.
#include "ops/cuda/attention_tiles.cuh"

namespace weft::ops::cuda {
namespace {

using namespace tiles;

// along = Σ dout · out: a warp to a row of a head.
template <class T>
__global__ void __launch_bounds__(kThreads) along_kernel(const __grid_constant__ Problem<T> p) {
  using A = Acc<T>;
  const Index query = Index{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const int head = blockIdx.y;
  const Index sample = blockIdx.z;
  if (query >= p.queries) return;
  const T* out = p.out.row(query, sample) + Index{head} * p.dim;
  const T* dout = p.dout.row(query, sample) + Index{head} * p.dim;
  A sum = 0;
  for (int c = threadIdx.x % 32; c < p.dim; c += 32) sum += to_acc(dout[c]) * to_acc(out[c]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) p.along[p.statistic(sample, head, query)] = sum;
}

// lse of a query, 0 where it is not finite (a query that sees neither key nor sink: its scores are all
// masked).
template <class T>
__device__ inline Acc<T> lse_of(const Problem<T>& p, Index sample, int head, Index query) {
  if (query >= p.queries) return 0;
  const Acc<T> lse = p.lse[p.statistic(sample, head, query)];
  return isfinite(lse) ? lse : Acc<T>{0};
}
template <class T>
__device__ inline Acc<T> along_of(const Problem<T>& p, Index sample, int head, Index query) {
  return query < p.queries ? p.along[p.statistic(sample, head, query)] : Acc<T>{0};
}

// dsinks[head] = −Σ exp(sink − lse) · along, over the samples and their queries in a fixed order: a block to
// a head.
template <class T>
__global__ void __launch_bounds__(kThreads) sinks_kernel(const __grid_constant__ Problem<T> p) {
  using A = Acc<T>;
  __shared__ A shared[32];
  const int head = blockIdx.x;
  const A sink = p.sinks[head];
  A sum = 0;
  for (Index sample = 0; sample < p.q.batch; ++sample) {
    for (Index query = threadIdx.x; query < p.queries; query += kThreads) {
      sum -= exponential(sink - lse_of(p, sample, head, query)) * along_of(p, sample, head, query);
    }
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) p.dsinks[head] = sum;
}

// With p = exp(score − lse) and m the dropout factors: dp = m (dout vᵀ), ds = p (dp − along), dq = scale ds
// k. A capped score c tanh(s / c) passes on ds (1 − tanh²). Registers of refined ones: as in the forward
// pass.
template <class T, int kDim, bool kRefined>
__global__ void __launch_bounds__(kThreads, !kRefined                           ? 0
                                            : kDim == 64 && sizeof(Acc<T>) == 4 ? 2
                                                                                : 1)
    dq_kernel(const __grid_constant__ Problem<T> p) {
  using A = Acc<T>;
  using Tl = Tiling<A, kDim>;
  constexpr int R = Tl::kRows;
  extern __shared__ __align__(16) unsigned char memory[];
  A* const q = reinterpret_cast<A*>(memory);
  A* const dout = q + Tl::kElements;
  A* const k = dout + Tl::kElements;
  A* const v = k + Tl::kElements;
  A* const scores = v + Tl::kElements;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int head = blockIdx.y;
  const Index sample = blockIdx.z;
  const Index first = Index{gridDim.x - 1 - blockIdx.x} * Tl::kTile;
  const Index keys = end_of_keys<Tl>(p, first);
  load_tile<Tl, T>(p.q, sample, head, p.dim, first, p.queries, p.scale, q);
  load_tile<Tl, T>(p.dout, sample, head, p.dim, first, p.queries, A{1}, dout);
  A lse[R], along[R], sums[R][Tl::kUnits * Tl::kUnit];
  Seen<kRefined> seen[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const Index query = first + ty * R + i;
    lse[i] = lse_of(p, sample, head, query);
    along[i] = along_of(p, sample, head, query);
    seen[i] = p.template seen<kRefined>(sample, query);
#pragma unroll
    for (int c = 0; c < Tl::kUnits * Tl::kUnit; ++c) sums[i][c] = 0;
  }
  for (Index from = begin_of_keys<kRefined, Tl>(p, sample, first); from < keys; from += Tl::kTile) {
    __syncthreads();  // the last tile has been read
    load_tile<Tl, T>(p.k, sample, head / p.group, p.dim, from, p.keys, A{1}, k);
    load_tile<Tl, T>(p.v, sample, head / p.group, p.dim, from, p.keys, A{1}, v);
    __syncthreads();
    A s[R][R], dp[R][R];
    multiply_rows<Tl>(q, k, p.dim, s);
    multiply_rows<Tl>(dout, v, p.dim, dp);
#pragma unroll
    for (int i = 0; i < R; ++i) {
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const Index key = from + tx + kSide * j;
        if (p.drop) dp[i][j] *= p.factor(sample, head, first + ty * R + i, key);
        const A slope = cap_score<kRefined>(p.cap, s[i][j]);
        s[i][j] = seen[i].has(key) ? exponential(s[i][j] - lse[i]) * (dp[i][j] - along[i]) * slope : A{0};
      }
    }
    put_scores<Tl>(s, scores);
    __syncwarp();
    add_product<Tl>(scores, k, sums);
  }
  A factor[R];
  bool zero[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    factor[i] = p.scale;
    zero[i] = false;
  }
  store_rows<Tl, T>(p.dq, sample, head, p.dim, first, p.queries, sums, factor, zero);
}

// dv = (p m)ᵀ dout, dk = dsᵀ (scale q), over the query heads of a key/value head in order.
template <class T, int kDim, bool kRefined>
__global__ void __launch_bounds__(kThreads) dkv_kernel(const __grid_constant__ Problem<T> p) {
  using A = Acc<T>;
  using Tl = Tiling<A, kDim>;
  constexpr int R = Tl::kRows;
  extern __shared__ __align__(16) unsigned char memory[];
  A* const k = reinterpret_cast<A*>(memory);
  A* const v = k + Tl::kElements;
  A* const q = v + Tl::kElements;
  A* const dout = q + Tl::kElements;
  A* const scores = dout + Tl::kElements;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int kv_head = blockIdx.y;
  const Index sample = blockIdx.z;
  const Index first = Index{blockIdx.x} * Tl::kTile;
  load_tile<Tl, T>(p.k, sample, kv_head, p.dim, first, p.keys, A{1}, k);
  load_tile<Tl, T>(p.v, sample, kv_head, p.dim, first, p.keys, A{1}, v);
  A dk[R][Tl::kUnits * Tl::kUnit], dv[R][Tl::kUnits * Tl::kUnit];
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int c = 0; c < Tl::kUnits * Tl::kUnit; ++c) dk[i][c] = dv[i][c] = 0;
  }
  // The first query that sees this tile's first key.
  const Index start = p.causal && first > p.offset ? (first - p.offset) / Tl::kTile * Tl::kTile : 0;
#pragma unroll 1
  for (int head = kv_head * p.group; head < (kv_head + 1) * p.group; ++head) {
#pragma unroll 1
    for (Index from = start; from < p.queries; from += Tl::kTile) {
      if constexpr (kRefined) {
        if (!tiles_meet<Tl>(p, sample, from, first)) continue;
      }
      __syncthreads();  // the last tile has been read
      load_tile<Tl, T>(p.q, sample, head, p.dim, from, p.queries, p.scale, q);
      load_tile<Tl, T>(p.dout, sample, head, p.dim, from, p.queries, A{1}, dout);
      __syncthreads();
      A lse[R], along[R];
      Seen<kRefined> seen[R];
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const Index query = from + tx + kSide * j;
        lse[j] = lse_of(p, sample, head, query);
        along[j] = along_of(p, sample, head, query);
        seen[j] = p.template seen<kRefined>(sample, query);
      }
      A s[R][R], dp[R][R];  // [keys][queries]
      multiply_rows<Tl>(k, q, p.dim, s);
      multiply_rows<Tl>(v, dout, p.dim, dp);
#pragma unroll
      for (int i = 0; i < R; ++i) {
#pragma unroll
        for (int j = 0; j < R; ++j) {
          const Index key = first + ty * R + i;
          const A slope = cap_score<kRefined>(p.cap, s[i][j]);
          const A probability = seen[j].has(key) ? exponential(s[i][j] - lse[j]) : A{0};
          const A factor = p.drop ? p.factor(sample, head, from + tx + kSide * j, key) : A{1};
          s[i][j] = probability * factor;
          dp[i][j] = seen[j].has(key) ? probability * (dp[i][j] * factor - along[j]) * slope : A{0};
        }
      }
      put_scores<Tl>(s, scores);
      __syncwarp();
      add_product<Tl>(scores, dout, dv);
      __syncwarp();
      put_scores<Tl>(dp, scores);
      __syncwarp();
      add_product<Tl>(scores, q, dk);
    }
  }
  A factor[R];
  bool zero[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    factor[i] = 1;
    zero[i] = false;
  }
  store_rows<Tl, T>(p.dk, sample, kv_head, p.dim, first, p.keys, dk, factor, zero);
  store_rows<Tl, T>(p.dv, sample, kv_head, p.dim, first, p.keys, dv, factor, zero);
}

}  // namespace

std::int64_t plain_attention_backward_scratch(const Tensor& q, const Tensor&,
                                              const AttentionOptions& options) {
  return q.rows() * (q.columns() / options.head_dim) *
         static_cast<std::int64_t>(bytes_of(accumulator_of(q.dtype())));
}

void plain_attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k,
                              const Tensor& v, const AttentionResult& forward,
                              const AttentionOptions& options, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv, const Tensor& dsinks, const Tensor& scratch) {
  visit_floating(q.dtype(), [&]<class T>(T) {
    Problem<T> p = problem_of<T>(q, k, v, forward, options);
    p.dout = Heads<T>(dout, p.dim);
    p.dq = Heads<T>(dq, p.dim);
    p.dk = Heads<T>(dk, p.dim);
    p.dv = Heads<T>(dv, p.dim);
    p.along = reinterpret_cast<Acc<T>*>(scratch.raw());
    if (dsinks.defined()) p.dsinks = data<Acc<T>>(dsinks);
    visit_kernels(p, [&]<int kDim, bool kRefined>(std::integral_constant<int, kDim>,
                                                  std::bool_constant<kRefined>) {
      using Tl = Tiling<Acc<T>, kDim>;
      constexpr int kBytes = (4 * Tl::kElements + Tl::kScores) * static_cast<int>(sizeof(Acc<T>));
      static_assert(kBytes <= 227 << 10);
      const unsigned samples = planes(q);
      const auto heads = static_cast<unsigned>(p.heads);
      const auto kv_heads = static_cast<unsigned>(p.heads / p.group);
      if (p.queries > 0) {
        along_kernel<T>
            <<<dim3(blocks_for(p.queries, kThreads / 32), heads, samples), kThreads, 0, stream(lane)>>>(p);
        launched("run attention_backward");
        launch(dq_kernel<T, kDim, kRefined>, stream(lane),
               dim3(blocks_for(p.queries, Tl::kTile), heads, samples), kBytes, p, "run attention_backward");
      }
      if (p.dsinks != nullptr) {
        sinks_kernel<T><<<heads, kThreads, 0, stream(lane)>>>(p);
        launched("run attention_backward");
      }
      if (p.keys > 0) {
        launch(dkv_kernel<T, kDim, kRefined>, stream(lane),
               dim3(blocks_for(p.keys, Tl::kTile), kv_heads, samples), kBytes, p, "run attention_backward");
      }
    });
  });
}

}  // namespace weft::ops::cuda
