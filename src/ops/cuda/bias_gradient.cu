// Column sums: a block takes a tile of columns, a vector for each lane, and a range of rows; its warps take
// every eighth row.
#include <algorithm>

#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kUnroll = 4;           // rows that a warp has under way
constexpr Index kPlannedTile = 256;  // columns, of 16-bit elements
constexpr Index kBlocksPerMultiprocessor = 6;
constexpr Index kLeastRows = kWarps * kUnroll;

template <class T, int N>
__global__ void __launch_bounds__(32 * kWarps)
    sum_columns(const T* __restrict__ dy, Index rows, Index columns, Index ld, Acc<T>* __restrict__ partial) {
  using A = Acc<T>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Index first = Index{blockIdx.x} * (32 * N), column = first + lane * N;
  const Index chunk = blockIdx.y, chunks = gridDim.y;
  const Index begin = rows * chunk / chunks, end = rows * (chunk + 1) / chunks;
  A sums[N] = {};
  if (column < columns) {
    const T* at = dy + column;
    Index row = begin + warp;
    for (; row + (kUnroll - 1) * kWarps < end; row += kUnroll * kWarps) {
      Vec<T, N> v[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) v[u] = load<N>(at + (row + u * kWarps) * ld);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int e = 0; e < N; ++e) sums[e] += to_acc(v[u].v[e]);
      }
    }
    for (; row < end; row += kWarps) {
      const Vec<T, N> v = load<N>(at + row * ld);
#pragma unroll
      for (int e = 0; e < N; ++e) sums[e] += to_acc(v.v[e]);
    }
  }
  write_partials<kWarps>(sums, first, columns, partial + chunk * columns);
}

template <class T, int N>
void launch(cudaStream_t stream, const Tensor& dy, Index chunks, Acc<T>* partial) {
  const dim3 grid(blocks_for(dy.columns(), 32 * N), static_cast<unsigned>(chunks));
  sum_columns<T, N><<<grid, 32 * kWarps, 0, stream>>>(data<T>(dy), dy.rows(), dy.columns(), dy.ld(), partial);
  launched("run bias_gradient");
}

}  // namespace

std::int64_t bias_gradient_chunks(const Lane&, std::int64_t rows, std::int64_t columns) {
  const Index tiles = std::max<Index>(1, (columns + kPlannedTile - 1) / kPlannedTile);
  const Index wanted = (kPlannedMultiprocessors * kBlocksPerMultiprocessor + tiles - 1) / tiles;
  return std::min(wanted, std::max<Index>(1, (rows + kLeastRows - 1) / kLeastRows));
}

void bias_gradient(Lane& lane, const Tensor& dy, const Tensor& db, float beta, const Tensor& scratch) {
  const Index columns = dy.columns();
  if (columns == 0) return;
  visit_floating(dy.dtype(), [&]<class T>(T) {
    using A = Acc<T>;
    const Index chunks = bias_gradient_chunks(lane, dy.rows(), columns);
    A* partial = data<A>(scratch);
    if (vectorizable(dy, kPerVector<T>)) {
      launch<T, kPerVector<T>>(stream(lane), dy, chunks, partial);
    } else {
      launch<T, 1>(stream(lane), dy, chunks, partial);
    }
    add_partials(stream(lane), partial, chunks, columns, beta, data<A>(db), "run bias_gradient");
  });
}

}  // namespace weft::ops::cuda
