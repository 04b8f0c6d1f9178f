#include "ops/cuda/broadcast.hpp"

#include <algorithm>

#include "ops/cuda/kernel.cuh"

namespace weft::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, class O>
__global__ void broadcast_kernel(const T* row, O* c, Index rows, Index columns, Index ld) {
  const Index step = static_cast<Index>(gridDim.x) * kThreads;
  for (Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; i < rows * columns; i += step) {
    c[i / columns * ld + i % columns] = from_acc<O>(to_acc(row[i % columns]));
  }
}

}  // namespace

void broadcast_row(cudaStream_t stream, const Tensor& row, const Tensor& c) {
  const unsigned blocks = std::min(blocks_for(c.elems(), kThreads), 4096u);
  visit_floating(row.dtype(), [&]<class T>(T) {
    const auto run = [&]<class O>(O) {
      broadcast_kernel<<<blocks, kThreads, 0, stream>>>(data<const T>(row), data<O>(c), c.rows(), c.columns(),
                                                        c.ld());
    };
    c.dtype() == row.dtype() ? run(T{}) : run(Acc<T>{});
  });
  launched("broadcast a row");
}

}  // namespace weft::ops::cuda
