#include "ops/cuda/kernel.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kThreads = 256;

// A thread to an element of x, for all heads.
template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const T* __restrict__ x, Index x_ld, T* __restrict__ y, Index y_ld, Index elems, Index d,
                Index heads, Index head_dim) {
  const Index item = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= elems) return;
  const Index r = item / d, c = item % d;
  const T value = x[r * x_ld + c];
  for (Index h = 0; h < heads; ++h) y[r * y_ld + h * head_dim + c] = value;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const T* __restrict__ y, Index y_ld, T* __restrict__ x, Index x_ld, Index elems, Index d,
               Index heads, Index head_dim) {
  const Index item = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= elems) return;
  const Index r = item / d, c = item % d;
  Acc<T> sum = 0;
  for (Index h = 0; h < heads; ++h) sum += to_acc(y[r * y_ld + h * head_dim + c]);
  x[r * x_ld + c] = from_acc<T>(sum);
}

}  // namespace

void copy_to_heads(Lane& lane, const Tensor& x, const Tensor& y, std::int64_t head_dim, std::int64_t first) {
  if (x.elems() == 0) return;
  visit_floating(x.dtype(), [&]<class T>(T) {
    copy_kernel<T><<<blocks_for(x.elems(), kThreads), kThreads, 0, stream(lane)>>>(
        data<T>(x), x.ld(), data<T>(y) + first, y.ld(), x.elems(), x.columns(), y.columns() / head_dim,
        head_dim);
  });
  launched("run copy_to_heads");
}

void sum_of_heads(Lane& lane, const Tensor& y, std::int64_t head_dim, std::int64_t first, const Tensor& x) {
  if (x.elems() == 0) return;
  visit_floating(x.dtype(), [&]<class T>(T) {
    sum_kernel<T><<<blocks_for(x.elems(), kThreads), kThreads, 0, stream(lane)>>>(
        data<T>(y) + first, y.ld(), data<T>(x), x.ld(), x.elems(), x.columns(), y.columns() / head_dim,
        head_dim);
  });
  launched("run sum_of_heads");
}

}  // namespace weft::ops::cuda
