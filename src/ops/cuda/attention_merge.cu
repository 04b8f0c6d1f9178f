#include "ops/attention_merge.hpp"

#include <limits>

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

// A warp to a (query, sample, head).
template <class T>
__global__ void __launch_bounds__(256)
    merge_kernel(Acc<T>* __restrict__ out, Index out_ld, Acc<T>* __restrict__ lse, Index lse_ld,
                 const T* __restrict__ more, Index more_ld, const Acc<T>* __restrict__ other, Index batch,
                 Index heads, Index queries, int d) {
  using A = Acc<T>;
  const Index item = (Index{blockIdx.x} * 256 + threadIdx.x) / 32;
  if (item >= queries * batch * heads) return;
  const Index r = item / heads, h = item % heads, query = r / batch, sample = r % batch;
  const Index statistic = sample * heads + h, at = statistic * lse_ld + query;
  const A a = lse[at], b = other[statistic * queries + query], max = a < b ? b : a;
  if (max == -std::numeric_limits<A>::infinity()) return;
  const A both = max + log(exp(a - max) + exp(b - max));
  const A keep = exp(a - both), add = exp(b - both);
  for (int c = threadIdx.x % 32; c < d; c += 32) {
    A& x = out[r * out_ld + h * d + c];
    x = keep * x + add * to_acc(more[r * more_ld + h * d + c]);
  }
  __syncwarp();  // all have read the sum
  if (threadIdx.x % 32 == 0) lse[at] = both;
}

}  // namespace

void merge_attention(Lane& lane, const AttentionResult& into, const AttentionResult& part) {
  const Index batch = into.lse.dim(0), heads = into.lse.dim(1), queries = into.lse.dim(2);
  if (into.lse.elems() == 0) return;
  visit_floating(part.out.dtype(), [&]<class T>(T) {
    merge_kernel<T><<<blocks_for(into.lse.elems() * 32, 256), 256, 0, stream(lane)>>>(
        data<Acc<T>>(into.out), into.out.ld(), data<Acc<T>>(into.lse), into.lse.ld(), data<T>(part.out),
        part.out.ld(), data<Acc<T>>(part.lse), batch, heads, queries,
        static_cast<int>(into.out.columns() / heads));
  });
  launched("run merge_attention");
}

}  // namespace weft::ops::cuda
