#include "ops/normal.hpp"

#include <algorithm>
#include <numbers>

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kThreads = 256;

// A thread takes pairs of elements of the larger matrix, 2p and 2p + 1, which come from one Philox block; the
// partner of a row's first or last element may lie elsewhere.
template <class T>
__global__ void __launch_bounds__(kThreads)
    normal_kernel(T* __restrict__ x, Index ld, Index rows, Index columns, RandomKey key, double std,
                  const ElementRange range) {
  const Index pair = Index{blockIdx.x} * kThreads + threadIdx.x;
  for (Index r = blockIdx.y; r < rows; r += gridDim.y) {
    const Index first = (range.first_row + r) * range.columns + range.first_column;
    const Index block = first / 2 + pair;
    if (2 * block >= first + columns) continue;
    const NormalBits bits = normal_bits(philox(key, static_cast<std::uint64_t>(block)));
    const double radius = std * sqrt(-2.0 * log(bits.radius));
    double sine = 0, cosine = 0;
    sincos(2.0 * std::numbers::pi * bits.angle, &sine, &cosine);
    const Index c = 2 * block - first;
    if (c >= 0) x[r * ld + c] = from_acc<T>(static_cast<Acc<T>>(radius * cosine));
    if (c + 1 < columns) x[r * ld + c + 1] = from_acc<T>(static_cast<Acc<T>>(radius * sine));
  }
}

}  // namespace

void fill_normal(Lane& lane, const Tensor& x, RandomKey key, double std, const ElementRange& range) {
  if (x.elems() == 0) return;
  const bool matrix = x.rank() > 1;
  const Index rows = matrix ? x.rows() : x.elems(), columns = matrix ? x.columns() : 1;
  const dim3 grid(blocks_for(columns / 2 + 1, kThreads), static_cast<unsigned>(std::min<Index>(rows, 65535)));
  visit_floating(x.dtype(), [&]<class T>(T) {
    normal_kernel<T><<<grid, kThreads, 0, stream(lane)>>>(data<T>(x), matrix ? x.ld() : 1, rows, columns, key,
                                                          std, range);
  });
  launched("run fill_normal");
}

}  // namespace weft::ops::cuda
