// What the forward and backward kernels of plain attention share: attention over tiles in shared memory, in
// the accumulator type. A block of 16 × 16 threads has a tile of rows (queries; keys for dk and dv) and walks
// over tiles of columns in order. Thread (tx, ty) has the rows ty · kRows + i, so what the 16 threads of a
// half-warp write of a row only they read.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/rng.hpp"
#include "ops/cuda/kernel.cuh"
#include "ops/cuda/plain_attention.hpp"
#include "ops/cuda/tools.hpp"

namespace weft::ops::cuda::tiles {

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
__device__ inline float tanh_of(float x) {
  return tanhf(x);
}
__device__ inline double tanh_of(double x) {
  return tanh(x);
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

// The keys [first, end) that a query sees. Kernels are refined where there is a window or a first key, a soft
// cap or sinks; in the others first is 0, and nothing is compiled for any of these. 32 bits save registers.
template <bool kRefined>
struct Seen {
  __device__ bool has(Index key) const { return key < end && (!kRefined || key >= first); }
  __device__ bool none() const { return end <= first; }
  std::conditional_t<kRefined, int, Index> first = 0, end = 0;
};

template <class T>
struct Problem {
  using A = Acc<T>;
  Heads<T> q, k, v, out, dout, dq, dk, dv;
  A* lse = nullptr;     // [b, heads, queries]
  A* along = nullptr;   // [b, heads, queries]: Σ dout · out
  A* dsinks = nullptr;  // [heads], as the sinks
  const A* sinks = nullptr;
  const std::int32_t* first_keys = nullptr;  // [b, queries]: positions; rows lie first_keys_ld apart
  Index first_keys_ld = 0;
  Index queries, keys, offset;
  Index first_key;   // position of key 0 in the whole sequence
  Index window = 0;  // 0: all keys before
  int heads, group, dim;
  bool causal, drop;
  A scale;
  A cap = 0;  // of scores; 0: none
  Dropout dropout;
  const std::int64_t* samples = nullptr;  // device memory: global numbers

  __device__ Index visible(Index query) const {
    if (query >= queries) return 0;
    if (!causal) return keys;
    const Index seen = query + offset + 1;
    return seen < 0 ? 0 : seen < keys ? seen : keys;
  }
  template <bool kRefined>
  __device__ Seen<kRefined> seen(Index sample, Index query) const {
    Seen<kRefined> result;
    const Index end = visible(query);
    result.end = end;
    if constexpr (kRefined) {
      if (query < queries) {
        Index first = window > 0 ? query + offset + 1 - window : 0;
        if (first_keys != nullptr) {
          const Index document = first_keys[sample * first_keys_ld + query] - first_key;
          first = first > document ? first : document;
        }
        result.first = first < 0 ? 0 : first < end ? first : end;
      }
    }
    return result;
  }
  bool refined() const { return window > 0 || first_keys != nullptr || cap > 0 || sinks != nullptr; }
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

// A tile of queries from `queries` on sees no key before the tile that begins here, and none from
// end_of_keys() on: the last query's end is the largest.
template <bool kRefined, class Tl, class T>
__device__ inline Index begin_of_keys(const Problem<T>& p, Index sample, Index queries) {
  if constexpr (kRefined) {
    // Each warp looks at all queries, so that none has to wait for another.
    Index begin = p.keys;
    for (int i = threadIdx.x % 32; i < Tl::kTile; i += 32) {
      const Seen<true> seen = p.template seen<true>(sample, queries + i);
      if (!seen.none() && seen.first < begin) begin = seen.first;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const Index other = __shfl_xor_sync(0xffffffffu, begin, offset);
      begin = other < begin ? other : begin;
    }
    return begin / Tl::kTile * Tl::kTile;
  }
  return 0;
}
template <class Tl, class T>
__device__ inline Index end_of_keys(const Problem<T>& p, Index queries) {
  const Index last = queries + Tl::kTile < p.queries ? queries + Tl::kTile : p.queries;
  return p.visible(last - 1);
}
// Whether some query of the tile from `queries` on sees some key of the tile from `keys` on: the same answer
// in every thread of the block.
template <class Tl, class T>
__device__ inline bool tiles_meet(const Problem<T>& p, Index sample, Index queries, Index keys) {
  bool meet = false;
  for (int i = threadIdx.x % 32; i < Tl::kTile; i += 32) {
    const Seen<true> seen = p.template seen<true>(sample, queries + i);
    const Index first = seen.first > keys ? seen.first : keys;
    meet = meet || (first < seen.end && first < keys + Tl::kTile);
  }
  return __any_sync(0xffffffffu, meet) != 0;
}

// Puts a score under the soft cap; returns the derivative of that.
template <bool kRefined, class A>
__device__ inline A cap_score(A cap, A& score) {
  if constexpr (kRefined) {
    if (cap > 0) {
      const A t = tanh_of(score / cap);
      score = cap * t;
      return 1 - t * t;
    }
  }
  return 1;
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
  p.window = options.window;
  if (options.first_keys.defined()) {
    p.first_keys = data<std::int32_t>(options.first_keys);
    p.first_keys_ld = options.first_keys.ld();
  }
  p.cap = static_cast<Acc<T>>(options.soft_cap);
  if (options.sinks.defined()) p.sinks = data<Acc<T>>(options.sinks);
  WEFT_CHECK(!p.refined() || p.keys <= std::numeric_limits<int>::max(), "attention to {} keys on a GPU",
             p.keys);
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
inline unsigned planes(const Tensor& q) {
  WEFT_CHECK(q.dim(1) <= 65535, "attention: {} samples at a time; a GPU takes 65535", q.dim(1));
  return static_cast<unsigned>(q.dim(1));
}

// Calls body with the least head size of kernels that p fits, and whether p is refined, as types.
template <class T, class Body>
void visit_kernels(const Problem<T>& p, const Body& body) {
  const auto with_dim = [&](auto dim) {
    if (p.refined()) {
      body(dim, std::true_type{});
    } else {
      body(dim, std::false_type{});
    }
  };
  if (p.dim <= 64) {
    with_dim(std::integral_constant<int, 64>{});
  } else if (p.dim <= 128) {
    with_dim(std::integral_constant<int, 128>{});
  } else {
    with_dim(std::integral_constant<int, 256>{});
  }
}

template <class Kernel, class T>
void launch(Kernel kernel, cudaStream_t stream, dim3 grid, int bytes, const Problem<T>& p, const char* what) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "take shared memory for attention");
  kernel<<<grid, kThreads, static_cast<std::size_t>(bytes), stream>>>(p);
  launched(what);
}

}  // namespace weft::ops::cuda::tiles
