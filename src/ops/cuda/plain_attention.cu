// Forward: for each tile of queries, tiles of keys in order, with the online softmax.
#include "ops/cuda/attention_tiles.cuh"

namespace weft::ops::cuda {
namespace {

using namespace tiles;

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

// Refined ones are held to the registers that let as many blocks run side by side as of the others.
template <class T, int kDim, bool kRefined>
__global__ void __launch_bounds__(kThreads, kRefined && sizeof(Acc<T>) == 4 ? 2 : 0)
    forward_kernel(const __grid_constant__ Problem<T> p) {
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
  const Index keys = end_of_keys<Tl>(p, first);
  load_tile<Tl, T>(p.q, sample, head, p.dim, first, p.queries, p.scale, q);

  A max[R], sum[R], sums[R][Tl::kUnits * Tl::kUnit];
  Seen<kRefined> seen[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    max[i] = lowest<A>();
    sum[i] = 0;
    if constexpr (kRefined) {
      if (p.sinks != nullptr)
        max[i] = p.sinks[head], sum[i] = 1;  // a score without a value, before all others
    }
    seen[i] = p.template seen<kRefined>(sample, first + ty * R + i);
#pragma unroll
    for (int c = 0; c < Tl::kUnits * Tl::kUnit; ++c) sums[i][c] = 0;
  }
  for (Index from = begin_of_keys<kRefined, Tl>(p, sample, first); from < keys; from += Tl::kTile) {
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
        cap_score<kRefined>(p.cap, s[i][j]);
        if (!seen[i].has(from + tx + kSide * j)) s[i][j] = lowest<A>();
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
    blind[i] = seen[i].none();
    inverse[i] = A{1} / sum[i];
    const Index query = first + ty * R + i;
    if (tx == 0 && query < p.queries) p.lse[p.statistic(sample, head, query)] = max[i] + logarithm(sum[i]);
  }
  store_rows<Tl, T>(p.out, sample, head, p.dim, first, p.queries, sums, inverse, blind);
}

}  // namespace

void plain_attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options, const AttentionResult& result) {
  if (q.elems() == 0) return;
  visit_floating(q.dtype(), [&]<class T>(T) {
    Problem<T> p = problem_of<T>(q, k, v, result, options);
    visit_kernels(
        p, [&]<int kDim, bool kRefined>(std::integral_constant<int, kDim>, std::bool_constant<kRefined>) {
          using Tl = Tiling<Acc<T>, kDim>;
          constexpr int kBytes = (2 * Tl::kElements + Tl::kScores) * static_cast<int>(sizeof(Acc<T>));
          const dim3 grid(blocks_for(p.queries, Tl::kTile), static_cast<unsigned>(p.heads), planes(q));
          launch(forward_kernel<T, kDim, kRefined>, stream(lane), grid, kBytes, p, "run attention");
        });
  });
}

}  // namespace weft::ops::cuda
