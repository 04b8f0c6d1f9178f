// What the kernels of routing and of its balance losses have in common: a warp to a token, whose lanes have
// the experts lane, lane + 32, ...; scores lie in shared memory.
#pragma once

#include <limits>

#include "ops/cuda/kernel.cuh"
#include "ops/twins.hpp"

namespace weft::ops::cuda {

constexpr int kRouterWarps = 8;        // of a block
constexpr int kMostExperts = 64 * 32;  // whose lanes keep a bit of each of theirs
// Against a division by nothing where all scores are 0.
constexpr double kScoreEpsilon = 1e-20;

inline void check_experts_fit(Index experts) {
  WEFT_CHECK(experts <= kMostExperts, "{} experts; a GPU's router knows {}", experts, kMostExperts);
}

__device__ inline float exp_exact(float x) {
  return expf(x);
}
__device__ inline double exp_exact(double x) {
  return exp(x);
}
__device__ inline float log_exact(float x) {
  return logf(x);
}
__device__ inline double log_exact(double x) {
  return log(x);
}
template <class A>
__device__ inline A sigmoid(A x) {
  return A{1} / (A{1} + exp_exact(-x));
}

// y = softmax of x(0), x(1), ... by a warp; returns logsumexp.
template <class A, class X>
__device__ A softmax(int n, const X& x, A* y) {
  const int lane = threadIdx.x % 32;
  A max = -std::numeric_limits<A>::infinity();
  for (int i = lane; i < n; i += 32) max = x(i) > max || x(i) != x(i) ? x(i) : max;
  max = warp_max(max);
  A sum = 0;
  for (int i = lane; i < n; i += 32) sum += y[i] = exp_exact(x(i) - max);
  sum = warp_sum(sum);
  for (int i = lane; i < n; i += 32) y[i] /= sum;
  __syncwarp();
  return max + log_exact(sum);
}

// Finds the best scores, one after the other: see Best of the CPU's twin.
class Best {
 public:
  // Experts [begin, end) alone.
  __device__ void open(int begin, int end, bool value = true) {
    for (int i = 0; i < 64; ++i) {
      const int e = i * 32 + static_cast<int>(threadIdx.x % 32);
      if (e < begin) continue;
      if (e >= end) break;
      const std::uint64_t bit = std::uint64_t{1} << i;
      open_ = value ? open_ | bit : open_ & ~bit;
    }
  }
  template <class A>
  __device__ int take(const A* scores, int begin, int end) {
    const int lane = threadIdx.x % 32;
    int found = -1;
    A best = 0;
    for (int e = begin / 32 * 32 + lane; e < end; e += 32) {
      if (e < begin || !(open_ >> (e / 32) & 1)) continue;
      if (found < 0 || scores[e] > best) {
        found = e;
        best = scores[e];
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const int other = __shfl_xor_sync(~0u, found, offset);
      const A score = __shfl_xor_sync(~0u, best, offset);
      const bool better = other >= 0 && (found < 0 || score > best || (!(best > score) && other < found));
      if (better) {
        found = other;
        best = score;
      }
    }
    found = __shfl_sync(~0u, found, 0);  // lanes may differ about a NaN
    if (found >= 0 && found % 32 == lane) open_ &= ~(std::uint64_t{1} << (found / 32));
    return found;
  }

 private:
  std::uint64_t open_ = 0;  // bit i: the lane's expert 32 i + lane
};

}  // namespace weft::ops::cuda
