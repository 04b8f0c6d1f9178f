// Attention over tiles in shared memory, in the accumulator type. A block of 16 × 16 threads has a tile of
// rows (queries; keys for dk and dv) and walks over tiles of columns in order. Thread (tx, ty) has the rows
// ty · kRows + i, so what the 16 threads of a half-warp write of a row only they read. Backward is two
// kernels, each with one owner for every sum: dq by tiles of queries, dk and dv by tiles of keys.
#include "ops/cuda/plain_attention.hpp"

#include <cmath>
#include <limits>

#include "core/rng.hpp"
#include "ops/cuda/kernel.cuh"
#include "ops/cuda/tools.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;

__device__ inline float exponential(float x) {
  return expf(x);
}
__device__ inline double exponential(double x) {
  return exp(x);
}
__device__ inline float logarithm(float x) {
  return logf(x);
}
__device__ inline double logarithm(double x) {
  return log(x);
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

// Tiles of kTile rows of up to kDim elements. Rows of a tile lie an odd number of 16-byte units apart: the
// threads of a half-warp then read one unit of 16 rows without bank conflicts.
template <class A, int kDim>
struct Tiling {
  static constexpr int kUnit = 16 / sizeof(A);
  static constexpr int kTile = kDim * static_cast<int>(sizeof(A)) <= 512    ? 64
                               : kDim * static_cast<int>(sizeof(A)) <= 1024 ? 32
                                                                            : 16;
  static constexpr int kRows = kTile / kSide;            // and columns, of a thread
  static constexpr int kUnits = kDim / (kSide * kUnit);  // of a row of the output, of a thread
  static constexpr int kStride = ((kDim / kUnit) | 1) * kUnit;
  static constexpr int kScoreStride = ((kTile / kUnit) | 1) * kUnit;
  static constexpr int kElements = kTile * kStride;  // of one tile
  static constexpr int kScores = kTile * kScoreStride;
};

struct Dropout {
  std::uint32_t threshold = 0;  // kept when bits >> 8 reach it
  double scale = 1;
  RandomKey key;
  Index first_head = 0;
};

// A [length, batch, heads · head_dim] tensor.
template <class T>
struct Heads {
  Heads() = default;
  explicit Heads(const Tensor& x, int head_dim) : data(cuda::data<T>(x)), ld(x.ld()), batch(x.dim(1)) {
    constexpr int kPart = 4;
    vectors = head_dim % kPart == 0 && x.ld() % kPart == 0 &&
              reinterpret_cast<std::uintptr_t>(x.raw()) % (kPart * sizeof(T)) == 0;
  }
  __device__ T* row(Index position, Index sample) const { return data + (position * batch + sample) * ld; }
  T* data = nullptr;
  Index ld = 0, batch = 0;
  bool vectors = false;  // rows of a head can be read four elements at a time
};

template <class T>
struct Problem {
  using A = Acc<T>;
  Heads<T> q, k, v, out, dout, dq, dk, dv;
  A* lse = nullptr;    // [b, heads, queries]
  A* along = nullptr;  // [b, heads, queries]: Σ dout · out
  Index queries, keys, offset;
  Index first_key;  // position of key 0 in the whole sequence
  int heads, group, dim;
  bool causal, drop;
  A scale;
  Dropout dropout;
  const std::int64_t* samples = nullptr;  // device memory: global numbers

  __device__ Index visible(Index query) const {
    if (query >= queries) return 0;
    if (!causal) return keys;
    const Index seen = query + offset + 1;
    return seen < 0 ? 0 : seen < keys ? seen : keys;
  }
  __device__ Index statistic(Index sample, int head, Index query) const {
    return (sample * heads + head) * queries + query;
  }
  // What a probability is multiplied with.
  __device__ A factor(Index sample, int head, Index query, Index key) const {
    key += first_key;
    const auto low =
        static_cast<std::uint64_t>(key / 4) | static_cast<std::uint64_t>(first_key + offset + query) << 32;
    const auto high = static_cast<std::uint64_t>(samples[sample]) << 20 |
                      static_cast<std::uint64_t>(dropout.first_head + head);
    const Philox words = philox(dropout.key, low, high);
    const int word = static_cast<int>(key % 4);
    const std::uint32_t bits = word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3];
    return (bits >> 8) >= dropout.threshold ? static_cast<A>(dropout.scale) : A{0};
  }
};

// Rows [first, first + kTile) of a head into a tile, times `factor`; 0 past the last row and past the head's
// elements.
template <class Tl, class T, class A = Acc<T>>
__device__ inline void load_tile(const Heads<T>& x, Index sample, int head, int dim, Index first, Index rows,
                                 A factor, A* __restrict__ tile) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = warp; i < Tl::kTile; i += kThreads / 32) {
    A* to = tile + i * Tl::kStride;
    const bool real = first + i < rows;
    const T* from = x.row(real ? first + i : 0, sample) + Index{head} * dim;
    const int end = real ? dim : 0;
    if (x.vectors) {
      for (int c = lane * 4; c < end; c += 128) {
        const Vec<T, 4> v = load<4>(from + c);
#pragma unroll
        for (int e = 0; e < 4; ++e) to[c + e] = to_acc(v.v[e]) * factor;
      }
    } else {
      for (int c = lane; c < end; c += 32) to[c] = to_acc(from[c]) * factor;
    }
    for (int c = end + lane; c < Tl::kStride; c += 32) to[c] = A{0};
  }
}

// product[i][j] = Σ_c a[ty · kRows + i][c] · b[tx + 16 j][c]
template <class Tl, class A>
__device__ inline void multiply_rows(const A* __restrict__ a, const A* __restrict__ b, int dim,
                                     A (&product)[Tl::kRows][Tl::kRows]) {
  constexpr int R = Tl::kRows, U = Tl::kUnit;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < R; ++j) product[i][j] = 0;
  }
#pragma unroll 2
  for (int c = 0; c < dim; c += U) {
    Vec<A, U> x[R], y[R];
#pragma unroll
    for (int i = 0; i < R; ++i) x[i] = load<U>(a + (ty * R + i) * Tl::kStride + c);
#pragma unroll
    for (int j = 0; j < R; ++j) y[j] = load<U>(b + (tx + kSide * j) * Tl::kStride + c);
#pragma unroll
    for (int e = 0; e < U; ++e) {
#pragma unroll
      for (int i = 0; i < R; ++i) {
#pragma unroll
        for (int j = 0; j < R; ++j) product[i][j] += x[i].v[e] * y[j].v[e];
      }
    }
  }
}

// sums[i][u · U + e] += Σ_j scores[ty · kRows + i][j] · b[j][(tx + 16 u) · U + e]
template <class Tl, class A>
__device__ inline void add_product(const A* __restrict__ scores, const A* __restrict__ b,
                                   A (&sums)[Tl::kRows][Tl::kUnits * Tl::kUnit]) {
  constexpr int R = Tl::kRows, U = Tl::kUnit;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll 1
  for (int j = 0; j < Tl::kTile; j += U) {
    Vec<A, U> s[R];
#pragma unroll
    for (int i = 0; i < R; ++i) s[i] = load<U>(scores + (ty * R + i) * Tl::kScoreStride + j);
#pragma unroll
    for (int f = 0; f < U; ++f) {
#pragma unroll
      for (int u = 0; u < Tl::kUnits; ++u) {
        const Vec<A, U> y = load<U>(b + (j + f) * Tl::kStride + (tx + kSide * u) * U);
#pragma unroll
        for (int i = 0; i < R; ++i) {
#pragma unroll
          for (int e = 0; e < U; ++e) sums[i][u * U + e] += s[i].v[f] * y.v[e];
        }
      }
    }
  }
}

template <class Tl, class A>
__device__ inline void put_scores(const A (&values)[Tl::kRows][Tl::kRows], A* scores) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < Tl::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Tl::kRows; ++j) {
      scores[(ty * Tl::kRows + i) * Tl::kScoreStride + tx + kSide * j] = values[i][j];
    }
  }
}

// Row ty · kRows + i of a result, times factor[i].
template <class Tl, class T, class A = Acc<T>>
__device__ inline void store_rows(const Heads<T>& x, Index sample, int head, int dim, Index first, Index rows,
                                  const A (&sums)[Tl::kRows][Tl::kUnits * Tl::kUnit],
                                  const A (&factor)[Tl::kRows], const bool (&zero)[Tl::kRows]) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < Tl::kRows; ++i) {
    const Index position = first + ty * Tl::kRows + i;
    if (position >= rows) continue;
    T* to = x.row(position, sample) + Index{head} * dim;
#pragma unroll
    for (int u = 0; u < Tl::kUnits; ++u) {
#pragma unroll
      for (int e = 0; e < Tl::kUnit; ++e) {
        const int c = (tx + kSide * u) * Tl::kUnit + e;
        if (c < dim) to[c] = from_acc<T>(zero[i] ? A{0} : sums[i][u * Tl::kUnit + e] * factor[i]);
      }
    }
  }
}

// Over the 16 threads of a row.
template <class A>
__device__ inline A row_sum(A x) {
  for (int offset = kSide / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
template <class A>
__device__ inline A row_max(A x) {
  for (int offset = kSide / 2; offset > 0; offset /= 2) {
    x = larger(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}

// How many keys some query of the tile sees: the last one sees most.
template <class T>
__device__ inline Index keys_of_tile(const Problem<T>& p, Index first, int tile) {
  const Index last = first + tile < p.queries ? first + tile : p.queries;
  return p.visible(last - 1);
}

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ Problem<T> p) {
  using A = Acc<T>;
  using Tl = Tiling<A, kDim>;
  constexpr int R = Tl::kRows;
  extern __shared__ __align__(16) unsigned char memory[];
  A* const q = reinterpret_cast<A*>(memory);
  A* const kv = q + Tl::kElements;  // keys, then values
  A* const scores = kv + Tl::kElements;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int head = blockIdx.y;
  const Index sample = blockIdx.z;
  // Late tiles first: they see the most keys.
  const Index first = Index{gridDim.x - 1 - blockIdx.x} * Tl::kTile;
  const Index keys = keys_of_tile(p, first, Tl::kTile);
  load_tile<Tl, T>(p.q, sample, head, p.dim, first, p.queries, p.scale, q);

  A max[R], sum[R], sums[R][Tl::kUnits * Tl::kUnit];
  Index seen[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    max[i] = lowest<A>();
    sum[i] = 0;
    seen[i] = p.visible(first + ty * R + i);
#pragma unroll
    for (int c = 0; c < Tl::kUnits * Tl::kUnit; ++c) sums[i][c] = 0;
  }
  for (Index from = 0; from < keys; from += Tl::kTile) {
    __syncthreads();  // the last tile's values have been read
    load_tile<Tl, T>(p.k, sample, head / p.group, p.dim, from, p.keys, A{1}, kv);
    __syncthreads();
    A s[R][R];
    multiply_rows<Tl>(q, kv, p.dim, s);
    __syncthreads();  // the keys have been read
    load_tile<Tl, T>(p.v, sample, head / p.group, p.dim, from, p.keys, A{1}, kv);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      A next = max[i];
#pragma unroll
      for (int j = 0; j < R; ++j) {
        if (from + tx + kSide * j >= seen[i]) s[i][j] = lowest<A>();
        next = larger(next, s[i][j]);
      }
      next = row_max(next);
      // A row that has seen nothing yet: any finite base gives exp(−infinity − base) = 0.
      const A base = next == lowest<A>() ? A{0} : next;
      const A rescale = exponential(max[i] - base);
      max[i] = next;
      A add = 0;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        s[i][j] = exponential(s[i][j] - base);
        add += s[i][j];
      }
      sum[i] = sum[i] * rescale + row_sum(add);
#pragma unroll
      for (int c = 0; c < Tl::kUnits * Tl::kUnit; ++c) sums[i][c] *= rescale;
      if (p.drop) {
#pragma unroll 1
        for (int j = 0; j < R; ++j) {
          const A factor = p.factor(sample, head, first + ty * R + i, from + tx + kSide * j);
#pragma unroll
          for (int at = 0; at < R; ++at) s[i][at] = at == j ? s[i][at] * factor : s[i][at];
        }
      }
    }
    put_scores<Tl>(s, scores);
    __syncthreads();
    add_product<Tl>(scores, kv, sums);
  }
  A inverse[R];
  bool blind[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    // A row that sees no key is 0. Scores that are NaN or all minus infinity must show: such a row is NaN.
    blind[i] = seen[i] <= 0;
    inverse[i] = A{1} / sum[i];
    const Index query = first + ty * R + i;
    if (tx == 0 && query < p.queries) p.lse[p.statistic(sample, head, query)] = max[i] + logarithm(sum[i]);
  }
  store_rows<Tl, T>(p.out, sample, head, p.dim, first, p.queries, sums, inverse, blind);
}

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

// lse of a query, 0 where it is not finite (a query that sees no key: its scores are all masked).
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

// With p = exp(score − lse) and m the dropout factors: dp = m (dout vᵀ), ds = p (dp − along), dq = scale ds
// k.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) dq_kernel(const __grid_constant__ Problem<T> p) {
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
  const Index keys = keys_of_tile(p, first, Tl::kTile);
  load_tile<Tl, T>(p.q, sample, head, p.dim, first, p.queries, p.scale, q);
  load_tile<Tl, T>(p.dout, sample, head, p.dim, first, p.queries, A{1}, dout);
  A lse[R], along[R], sums[R][Tl::kUnits * Tl::kUnit];
  Index seen[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const Index query = first + ty * R + i;
    lse[i] = lse_of(p, sample, head, query);
    along[i] = along_of(p, sample, head, query);
    seen[i] = p.visible(query);
#pragma unroll
    for (int c = 0; c < Tl::kUnits * Tl::kUnit; ++c) sums[i][c] = 0;
  }
  for (Index from = 0; from < keys; from += Tl::kTile) {
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
        s[i][j] = key < seen[i] ? exponential(s[i][j] - lse[i]) * (dp[i][j] - along[i]) : A{0};
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
template <class T, int kDim>
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
      __syncthreads();  // the last tile has been read
      load_tile<Tl, T>(p.q, sample, head, p.dim, from, p.queries, p.scale, q);
      load_tile<Tl, T>(p.dout, sample, head, p.dim, from, p.queries, A{1}, dout);
      __syncthreads();
      A lse[R], along[R];
      Index seen[R];
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const Index query = from + tx + kSide * j;
        lse[j] = lse_of(p, sample, head, query);
        along[j] = along_of(p, sample, head, query);
        seen[j] = p.visible(query);
      }
      A s[R][R], dp[R][R];  // [keys][queries]
      multiply_rows<Tl>(k, q, p.dim, s);
      multiply_rows<Tl>(v, dout, p.dim, dp);
#pragma unroll
      for (int i = 0; i < R; ++i) {
#pragma unroll
        for (int j = 0; j < R; ++j) {
          const Index key = first + ty * R + i;
          const A probability = key < seen[j] ? exponential(s[i][j] - lse[j]) : A{0};
          const A factor = p.drop ? p.factor(sample, head, from + tx + kSide * j, key) : A{1};
          s[i][j] = probability * factor;
          dp[i][j] = key < seen[j] ? probability * (dp[i][j] * factor - along[j]) : A{0};
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

template <class T>
Problem<T> problem_of(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionResult& result,
                      const AttentionOptions& options) {
  const int dim = options.head_dim;
  WEFT_CHECK(dim <= kPlainAttentionHeadDim, "attention on a GPU takes heads of at most {} elements, not {}",
             kPlainAttentionHeadDim, dim);
  Problem<T> p{};
  p.q = Heads<T>(q, dim);
  p.k = Heads<T>(k, dim);
  p.v = Heads<T>(v, dim);
  p.out = Heads<T>(result.out, dim);
  p.lse = data<Acc<T>>(result.lse);
  p.queries = q.dim(0);
  p.keys = k.dim(0);
  p.offset = options.query_offset;
  p.first_key = options.first_key;
  p.heads = static_cast<int>(q.columns() / dim);
  p.group = static_cast<int>(q.columns() / k.columns());
  p.dim = dim;
  p.causal = options.causal;
  p.scale = static_cast<Acc<T>>(options.scale);
  p.drop = options.dropout > 0;
  if (p.drop) {
    p.dropout.threshold = static_cast<std::uint32_t>(std::ceil(options.dropout * 0x1p24));
    p.dropout.scale = 1 / (1 - options.dropout);
    p.dropout.key = options.dropout_key;
    p.dropout.first_head = options.first_head;
    p.samples = data<std::int64_t>(options.sample_ids);
  }
  return p;
}

// One plane of the grid for each sample.
unsigned planes(const Tensor& q) {
  WEFT_CHECK(q.dim(1) <= 65535, "attention: {} samples at a time; a GPU takes 65535", q.dim(1));
  return static_cast<unsigned>(q.dim(1));
}

template <class Body>
void visit_dim(int dim, const Body& body) {
  if (dim <= 64) {
    body(std::integral_constant<int, 64>{});
  } else if (dim <= 128) {
    body(std::integral_constant<int, 128>{});
  } else {
    body(std::integral_constant<int, 256>{});
  }
}

template <class Kernel, class T>
void launch(Kernel kernel, cudaStream_t stream, dim3 grid, int bytes, const Problem<T>& p, const char* what) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "take shared memory for attention");
  kernel<<<grid, kThreads, static_cast<std::size_t>(bytes), stream>>>(p);
  launched(what);
}

}  // namespace

void plain_attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options, const AttentionResult& result) {
  if (q.elems() == 0) return;
  visit_floating(q.dtype(), [&]<class T>(T) {
    Problem<T> p = problem_of<T>(q, k, v, result, options);
    visit_dim(p.dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
      using Tl = Tiling<Acc<T>, kDim>;
      constexpr int kBytes = (2 * Tl::kElements + Tl::kScores) * static_cast<int>(sizeof(Acc<T>));
      const dim3 grid(blocks_for(p.queries, Tl::kTile), static_cast<unsigned>(p.heads), planes(q));
      launch(forward_kernel<T, kDim>, stream(lane), grid, kBytes, p, "run attention");
    });
  });
}

std::int64_t plain_attention_backward_scratch(const Tensor& q, const Tensor&,
                                              const AttentionOptions& options) {
  return q.rows() * (q.columns() / options.head_dim) *
         static_cast<std::int64_t>(bytes_of(accumulator_of(q.dtype())));
}

void plain_attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k,
                              const Tensor& v, const AttentionResult& forward,
                              const AttentionOptions& options, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv, const Tensor& scratch) {
  visit_floating(q.dtype(), [&]<class T>(T) {
    Problem<T> p = problem_of<T>(q, k, v, forward, options);
    p.dout = Heads<T>(dout, p.dim);
    p.dq = Heads<T>(dq, p.dim);
    p.dk = Heads<T>(dk, p.dim);
    p.dv = Heads<T>(dv, p.dim);
    p.along = reinterpret_cast<Acc<T>*>(scratch.raw());
    visit_dim(p.dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
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
        launch(dq_kernel<T, kDim>, stream(lane), dim3(blocks_for(p.queries, Tl::kTile), heads, samples),
               kBytes, p, "run attention_backward");
      }
      if (p.keys > 0) {
        launch(dkv_kernel<T, kDim>, stream(lane), dim3(blocks_for(p.keys, Tl::kTile), kv_heads, samples),
               kBytes, p, "run attention_backward");
      }
    });
  });
}

}  // namespace weft::ops::cuda
