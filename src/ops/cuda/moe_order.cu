// Pairs in the order of their experts: a stable counting sort. Blocks of pairs count their experts; one block
// adds the counts up; blocks then find the place of each pair among the pairs before it. And which pairs an
// expert keeps that has too many.
#include "ops/cuda/router_scores.cuh"
#include "ops/cuda/tools.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kPairs = 256, kWarps = kPairs / 32;  // of a block
constexpr int kAddThreads = 1024;

// [experts, blocks of kPairs]: how many of a block's pairs an expert has, then how many of those before it.
struct Counts {
  Index blocks;
  std::int32_t* counts;
};

__global__ void __launch_bounds__(kPairs)
    count_block(const std::int32_t* experts, Index pairs, int n, Counts c) {
  extern __shared__ int sums[];
  for (int e = threadIdx.x; e < n; e += kPairs) sums[e] = 0;
  __syncthreads();
  const Index i = Index{blockIdx.x} * kPairs + threadIdx.x;
  const int mine = i < pairs ? experts[i] : -1;
  if (mine >= n) __trap();  // the CPU throws
  if (mine >= 0) atomicAdd(sums + mine, 1);
  __syncthreads();
  for (int e = threadIdx.x; e < n; e += kPairs) c.counts[e * c.blocks + blockIdx.x] = sums[e];
}

// A warp to an expert; then the offsets.
__global__ void __launch_bounds__(kAddThreads)
    add_counts(Counts c, int n, std::int32_t padded_to, std::int32_t* offsets) {
  extern __shared__ int totals[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto scanned = [&](int x) {  // inclusive
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(~0u, x, offset);
      if (lane >= offset) x += other;
    }
    return x;
  };
  constexpr int kAtOnce = 8;  // counts of a lane, all under way together
  for (int e = warp; e < n; e += kAddThreads / 32) {
    std::int32_t* counts = c.counts + e * c.blocks;
    int before = 0;
    for (Index b = lane; b < c.blocks + lane; b += 32 * kAtOnce) {
      int x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) x[i] = b + 32 * i < c.blocks ? counts[b + 32 * i] : 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int sum = scanned(x[i]);
        if (b + 32 * i < c.blocks) counts[b + 32 * i] = before + sum - x[i];
        before += __shfl_sync(~0u, sum, 31);
      }
    }
    if (lane == 0) totals[e] = before;
  }
  __syncthreads();
  if (warp != 0) return;
  int before = 0;
  for (int base = 0; base < n; base += 32) {
    const int e = base + lane, x = e < n ? totals[e] : 0, sum = scanned(x);
    if (padded_to > 0 && x > padded_to) __trap();  // the CPU throws
    if (e < n) offsets[e] = padded_to > 0 ? padded_to * e : before + sum - x;
    before += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) offsets[n] = padded_to > 0 ? padded_to * n : before;
}

__global__ void __launch_bounds__(kPairs)
    place_pairs(const std::int32_t* experts, Index pairs, int n, Counts c, const std::int32_t* offsets,
                std::int32_t* rows) {
  extern __shared__ int of_warps[];  // [kWarps, n]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < kWarps * n; i += kPairs) of_warps[i] = 0;
  __syncthreads();
  const Index i = Index{blockIdx.x} * kPairs + threadIdx.x;
  const int e = i < pairs ? experts[i] : -1;
  const unsigned same = __match_any_sync(~0u, e);
  const int place = __popc(same & ((1u << lane) - 1));
  if (e >= 0 && place == 0) of_warps[warp * n + e] = __popc(same);
  __syncthreads();
  if (i >= pairs) return;
  if (e < 0) {
    rows[i] = -1;
    return;
  }
  int row = offsets[e] + c.counts[e * c.blocks + blockIdx.x] + place;
  for (int w = 0; w < warp; ++w) row += of_warps[w * n + e];
  rows[i] = row;
}

void order(Lane& lane, const Tensor& experts, int n, Index padded_to, std::int32_t* rows,
           std::int32_t* offsets, std::int32_t* counts) {
  const Index pairs = experts.elems();
  const std::int32_t* in = data<std::int32_t>(experts);
  const Counts c{(pairs + kPairs - 1) / kPairs, counts};
  const auto blocks = static_cast<unsigned>(c.blocks);
  const std::size_t one = static_cast<std::size_t>(n) * sizeof(int);
  if (blocks > 0) {
    count_block<<<blocks, kPairs, one, stream(lane)>>>(in, pairs, n, c);
    launched("count pairs of experts");
  }
  add_counts<<<1, kAddThreads, one, stream(lane)>>>(c, n, static_cast<std::int32_t>(padded_to), offsets);
  launched("add pairs of experts up");
  if (blocks == 0) return;
  check(cudaFuncSetAttribute(place_pairs, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kWarps * one)),
        "use shared memory for expert_order");
  place_pairs<<<blocks, kPairs, kWarps * one, stream(lane)>>>(in, pairs, n, c, offsets, rows);
  launched("run expert_order");
}

// What drop_over_capacity keeps beside the order: [rows | offsets | pairs in order | dropped | counts].
struct DropScratch {
  DropScratch(const Tensor& scratch, Index pairs, Index n)
      : rows(reinterpret_cast<std::int32_t*>(scratch.raw())),
        list(rows + pairs),
        dropped(list + pairs),
        offsets(dropped + pairs),
        counts(offsets + n + 1) {}
  std::int32_t *rows, *list, *dropped, *offsets, *counts;
};

__global__ void __launch_bounds__(kPairs)
    list_pairs(const std::int32_t* rows, Index pairs, std::int32_t* list) {
  const Index i = Index{blockIdx.x} * kPairs + threadIdx.x;
  if (i < pairs && rows[i] >= 0) list[rows[i]] = static_cast<std::int32_t>(i);
}

// The thread of a pair counts the pairs of its expert that stand before it.
template <class A>
__global__ void __launch_bounds__(kPairs)
    mark_dropped(const std::int32_t* experts, const A* probs, const std::int32_t* places, Index pairs, int k,
                 std::int64_t capacity, bool by_position, const std::int32_t* offsets,
                 const std::int32_t* list, std::int32_t* dropped) {
  const Index i = Index{blockIdx.x} * kPairs + threadIdx.x;
  if (i >= pairs) return;
  const int e = experts[i];
  bool drop = false;
  if (e >= 0 && offsets[e + 1] - offsets[e] > capacity) {
    const auto mine = static_cast<int>(i);
    const A x = probs[mine];
    const int place = places[mine / k];
    Index before = 0;
    for (int at = offsets[e]; at < offsets[e + 1]; ++at) {
      const int other = list[at];
      bool first;
      const A y = probs[other];
      if (!by_position && isnan(x) != isnan(y)) {
        first = isnan(x);  // numbers before what is none
      } else if (!by_position && (x > y || y > x)) {
        first = y > x;
      } else if (places[other / k] != place) {
        first = places[other / k] < place;
      } else if (other % k != mine % k) {
        first = other % k < mine % k;
      } else {
        first = other < mine;
      }
      if (first) ++before;
    }
    drop = before >= capacity;
  }
  dropped[i] = drop;
}

template <class A>
__global__ void __launch_bounds__(kPairs)
    drop_marked(const std::int32_t* dropped, Index pairs, std::int32_t* experts, A* probs) {
  const Index i = Index{blockIdx.x} * kPairs + threadIdx.x;
  if (i >= pairs || dropped[i] == 0) return;
  experts[i] = -1;
  probs[i] = 0;
}

std::int64_t count_bytes(Index pairs, Index n) {
  return (pairs + kPairs - 1) / kPairs * n * static_cast<Index>(sizeof(std::int32_t));
}

}  // namespace

std::int64_t expert_order_scratch(const Lane&, const Tensor& experts, std::int64_t num_experts) {
  return count_bytes(experts.elems(), num_experts);
}

void expert_order(Lane& lane, const Tensor& experts, std::int64_t padded_to, const ExpertOrder& result,
                  const Tensor& scratch) {
  const Index n = result.offsets.elems() - 1;
  check_experts_fit(n);
  order(lane, experts, static_cast<int>(n), padded_to, data<std::int32_t>(result.rows),
        data<std::int32_t>(result.offsets), reinterpret_cast<std::int32_t*>(scratch.raw()));
}

std::int64_t drop_over_capacity_scratch(const Lane&, const Tensor& experts, std::int64_t num_experts) {
  return (3 * experts.elems() + num_experts + 1) * static_cast<Index>(sizeof(std::int32_t)) +
         count_bytes(experts.elems(), num_experts);
}

void drop_over_capacity(Lane& lane, const Routing& routing, const Tensor& places, std::int64_t num_experts,
                        std::int64_t capacity, bool by_position, const Tensor& scratch) {
  check_experts_fit(num_experts);
  const Index pairs = routing.experts.elems();
  if (pairs == 0) return;
  const DropScratch s(scratch, pairs, num_experts);
  order(lane, routing.experts, static_cast<int>(num_experts), 0, s.rows, s.offsets, s.counts);
  const unsigned blocks = blocks_for(pairs, kPairs);
  std::int32_t* experts = data<std::int32_t>(routing.experts);
  list_pairs<<<blocks, kPairs, 0, stream(lane)>>>(s.rows, pairs, s.list);
  const auto drop = [&]<class A>(A) {
    mark_dropped<A><<<blocks, kPairs, 0, stream(lane)>>>(
        experts, data<A>(routing.probs), data<std::int32_t>(places), pairs,
        static_cast<int>(routing.experts.dim(1)), capacity, by_position, s.offsets, s.list, s.dropped);
    drop_marked<A><<<blocks, kPairs, 0, stream(lane)>>>(s.dropped, pairs, experts, data<A>(routing.probs));
  };
  WEFT_CHECK(routing.probs.dtype() == DType::kF32 || routing.probs.dtype() == DType::kF64,
             "drop_over_capacity: weights of {}", name_of(routing.probs.dtype()));
  routing.probs.dtype() == DType::kF64 ? drop(double{}) : drop(float{});
  launched("run drop_over_capacity");
}

}  // namespace weft::ops::cuda
