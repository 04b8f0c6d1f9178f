// Sums over rows, second half: partial sums of row ranges, added in order.
#pragma once

#include "ops/cuda/kernel.cuh"

namespace weft::ops::cuda {

// A fixed number, so that a plan made without a GPU is the same as with one: an H100's or H200's
// multiprocessors.
inline constexpr Index kPlannedMultiprocessors = 132;

inline constexpr int kSumColumns = 32;  // columns of a block
inline constexpr int kSumGroups = 32;   // of partials, each summed in order, then added in order

// First half, the end of it: each lane of kWarps warps has the sums of N columns, from `first` + N · lane on,
// over the rows of its warp. Adds them up over the warps, in order, and writes the block's row of partial
// sums.
template <int kWarps, class A, int N>
__device__ inline void write_partials(const A (&sums)[N], Index first, Index columns, A* row) {
  __shared__ A shared[kWarps][32 * N];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int e = 0; e < N; ++e) shared[warp][lane * N + e] = sums[e];
  __syncthreads();
  for (int c = threadIdx.x; c < 32 * N && first + c < columns; c += 32 * kWarps) {
    A total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w][c];
    row[first + c] = total;
  }
}

// out[columns] = beta · out + Σ partial[i][columns]
template <class A>
__global__ void __launch_bounds__(kSumColumns* kSumGroups)
    add_partials_kernel(const A* __restrict__ partial, Index count, Index columns, A beta, A* out) {
  __shared__ A sums[kSumGroups][kSumColumns];
  const Index column = Index{blockIdx.x} * kSumColumns + threadIdx.x;
  A sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (Index i = threadIdx.y; i < count; i += kSumGroups) sum += partial[i * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  A total = 0;
  for (int g = 0; g < kSumGroups; ++g) total += sums[g][threadIdx.x];
  out[column] = beta == 0 ? total : beta * out[column] + total;
}

template <class A>
void add_partials(cudaStream_t stream, const A* partial, Index count, Index columns, float beta, A* out,
                  const char* what) {
  add_partials_kernel<A><<<blocks_for(columns, kSumColumns), dim3(kSumColumns, kSumGroups), 0, stream>>>(
      partial, count, columns, static_cast<A>(beta), out);
  launched(what);
}

}  // namespace weft::ops::cuda
