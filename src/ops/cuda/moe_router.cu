// Which experts a token goes to, and the derivative: a warp to a token.
#include "ops/cuda/router_scores.cuh"
#include "ops/cuda/tools.hpp"

namespace weft::ops::cuda {
namespace {

struct Options {
  explicit Options(const RouterOptions& o)
      : k(o.topk), score(o.score), groups(o.groups), group_topk(o.group_topk), scale(o.scale) {}
  int k;
  RouterScore score;
  int groups, group_topk;
  double scale;
};

template <class A>
struct RouteArgs {
  const A* logits;
  Index logits_ld;
  const A* bias;                // or null
  const std::uint8_t* counted;  // or null
  A* probs;
  std::int32_t* chosen;
  Index rows;
  int experts;
};

// Of each warp: scores and ranked scores of the experts, best sums of the groups, chosen scores.
template <class A>
__global__ void __launch_bounds__(32 * kRouterWarps) choose(const RouteArgs<A> p, const Options o) {
  extern __shared__ __align__(16) std::byte shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = p.experts;
  A* scores = reinterpret_cast<A*>(shared) + static_cast<Index>(warp) * (2 * n + o.groups + o.k);
  A *ranked = scores + n, *sums = ranked + n, *weights = sums + o.groups;
  auto* chosen =
      reinterpret_cast<std::int32_t*>(reinterpret_cast<A*>(shared) +
                                      static_cast<Index>(kRouterWarps) * (2 * n + o.groups + o.k)) +
      warp * o.k;
  for (Index row = Index{blockIdx.x} * kRouterWarps + warp; row < p.rows;
       row += Index{gridDim.x} * kRouterWarps) {
    if (p.counted != nullptr && p.counted[row] == 0) {
      for (int j = lane; j < o.k; j += 32) {
        p.probs[row * o.k + j] = 0;
        p.chosen[row * o.k + j] = -1;
      }
      continue;
    }
    const A* logits = p.logits + row * p.logits_ld;
    if (o.score == RouterScore::kSoftmaxOverAll) {
      softmax(
          n, [&](int e) { return logits[e]; }, scores);
    } else {
      for (int e = lane; e < n; e += 32)
        scores[e] = o.score == RouterScore::kSigmoid ? sigmoid(logits[e]) : logits[e];
    }
    for (int e = lane; e < n; e += 32) ranked[e] = p.bias != nullptr ? scores[e] + p.bias[e] : scores[e];
    __syncwarp();
    Best best;
    best.open(0, n);
    if (o.groups > 0) {
      const int each = n / o.groups, measured = o.k / o.group_topk;
      for (int g = 0; g < o.groups; ++g) {
        A sum = 0;
        for (int i = 0; i < measured; ++i) sum += ranked[best.take(ranked, g * each, (g + 1) * each)];
        if (lane == 0) sums[g] = sum;
      }
      __syncwarp();
      best.open(0, n, false);
      Best groups;
      groups.open(0, o.groups);
      for (int i = 0; i < o.group_topk; ++i) {
        const int g = groups.take(sums, 0, o.groups);
        best.open(g * each, (g + 1) * each);
      }
    }
    for (int j = 0; j < o.k; ++j) {
      const int e = best.take(ranked, 0, n);
      if (lane == 0) {
        chosen[j] = e;
        p.chosen[row * o.k + j] = e;
      }
    }
    __syncwarp();
    A by = 1;
    if (o.score == RouterScore::kSoftmax) {
      softmax(
          o.k, [&](int j) { return logits[chosen[j]]; }, weights);
    } else {
      A sum = 0;
      for (int j = lane; j < o.k; j += 32) sum += weights[j] = scores[chosen[j]];
      sum = warp_sum(sum);
      if (o.score == RouterScore::kSigmoid && o.k > 1) by = sum + static_cast<A>(kScoreEpsilon);
    }
    for (int j = lane; j < o.k; j += 32) p.probs[row * o.k + j] = weights[j] / by * static_cast<A>(o.scale);
    __syncwarp();
  }
}

// Rounded, and not fused with what is added: the mean of one is that one.
__device__ inline float product(float x, float y) {
  return __fmul_rn(x, y);
}
__device__ inline double product(double x, double y) {
  return __dmul_rn(x, y);
}

template <class A>
struct RouteBackwardArgs {
  const A *dprobs, *logits;
  Index logits_ld;
  const std::int32_t* chosen;
  A* dlogits;
  Index dlogits_ld;
  Index rows;
  int experts;
};

// Of each warp: the row of dlogits, and weight and gradient of each choice.
template <class A>
__global__ void __launch_bounds__(32 * kRouterWarps)
    choose_backward(const RouteBackwardArgs<A> p, const Options o) {
  extern __shared__ __align__(16) std::byte shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = p.experts;
  A* out = reinterpret_cast<A*>(shared) + static_cast<Index>(warp) * (n + o.k);
  A* weights = out + n;
  for (Index row = Index{blockIdx.x} * kRouterWarps + warp; row < p.rows;
       row += Index{gridDim.x} * kRouterWarps) {
    const A *logits = p.logits + row * p.logits_ld, *dprobs = p.dprobs + row * o.k;
    const std::int32_t* chosen = p.chosen + row * o.k;
    const auto gradient = [&](int j) { return product(dprobs[j], static_cast<A>(o.scale)); };
    A mean = 0;
    if (o.score == RouterScore::kSoftmaxOverAll) {
      softmax(
          n, [&](int e) { return logits[e]; }, out);
      for (int j = lane; j < o.k; j += 32) {
        if (chosen[j] >= 0) mean += out[chosen[j]] * gradient(j);
      }
      mean = warp_sum(mean);
      // A token without choices has no gradients, and so no mean.
      for (int j = lane; j < o.k; j += 32) weights[j] = chosen[j] < 0 ? A{0} : out[chosen[j]] * gradient(j);
      __syncwarp();
      for (int e = lane; e < n; e += 32) out[e] *= -mean;
      __syncwarp();
      for (int j = lane; j < o.k; j += 32) {
        if (chosen[j] >= 0) out[chosen[j]] += weights[j];
      }
    } else {
      for (int e = lane; e < n; e += 32) out[e] = 0;
      __syncwarp();
      if (o.score == RouterScore::kSoftmax) {
        // A choice of −1 has no weight.
        softmax(
            o.k,
            [&](int j) { return chosen[j] < 0 ? -std::numeric_limits<A>::infinity() : logits[chosen[j]]; },
            weights);
        for (int j = lane; j < o.k; j += 32) {
          if (chosen[j] >= 0) mean += weights[j] * gradient(j);
        }
        mean = warp_sum(mean);
        for (int j = lane; j < o.k; j += 32) {
          if (chosen[j] >= 0) out[chosen[j]] = weights[j] * (gradient(j) - mean);
        }
      } else {
        A sum = 0;
        for (int j = lane; j < o.k; j += 32)
          sum += weights[j] = chosen[j] < 0 ? A{0} : sigmoid(logits[chosen[j]]);
        sum = warp_sum(sum) + static_cast<A>(kScoreEpsilon);
        for (int j = lane; j < o.k; j += 32) {
          if (chosen[j] >= 0) mean += weights[j] / sum * gradient(j);
        }
        mean = warp_sum(mean);
        for (int j = lane; j < o.k; j += 32) {
          if (chosen[j] < 0) continue;
          const A d = o.k > 1 ? (gradient(j) - mean) / sum : gradient(j);
          out[chosen[j]] = d * weights[j] * (A{1} - weights[j]);
        }
      }
    }
    __syncwarp();
    for (int e = lane; e < n; e += 32) p.dlogits[row * p.dlogits_ld + e] = out[e];
    __syncwarp();
  }
}

unsigned router_blocks(const Lane& lane, Index rows) {
  return std::min(blocks_for(rows, kRouterWarps), static_cast<unsigned>(tools(lane).multiprocessors) * 16);
}

template <class Kernel, class... Arguments>
void launch(Lane& lane, const char* what, Index rows, std::size_t shared, Kernel kernel,
            const Arguments&... arguments) {
  if (rows == 0) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        what);
  kernel<<<router_blocks(lane, rows), 32 * kRouterWarps, shared, stream(lane)>>>(arguments...);
  launched(what);
}

template <class Body>
void visit_accumulator(DType dtype, Body&& body) {
  dtype == DType::kF64 ? body(double{}) : body(float{});
}

constexpr int kCountThreads = 1024;
__global__ void __launch_bounds__(kCountThreads)
    count(const std::int32_t* experts, Index pairs, double* out, int n) {
  extern __shared__ int counts[];
  for (int e = threadIdx.x; e < n; e += kCountThreads) counts[e] = 0;
  __syncthreads();
  for (Index i = threadIdx.x; i < pairs; i += kCountThreads) {
    const int e = experts[i];
    if (e >= 0 && e < n) atomicAdd(counts + e, 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < n; e += kCountThreads) out[e] += counts[e];
}

}  // namespace

void route(Lane& lane, const Tensor& logits, const Tensor& bias, const Tensor& counted,
           const RouterOptions& options, const Routing& routing) {
  const Index n = logits.dim(1);
  check_experts_fit(n);
  visit_accumulator(logits.dtype(), [&]<class A>(A) {
    const RouteArgs<A> args{data<A>(logits),
                            logits.ld(),
                            bias.defined() ? data<A>(bias) : nullptr,
                            counted.defined() ? data<std::uint8_t>(counted) : nullptr,
                            data<A>(routing.probs),
                            data<std::int32_t>(routing.experts),
                            logits.dim(0),
                            static_cast<int>(n)};
    const std::size_t shared =
        kRouterWarps * (static_cast<std::size_t>(2 * n + options.groups + options.topk) * sizeof(A) +
                        static_cast<std::size_t>(options.topk) * sizeof(std::int32_t));
    launch(lane, "run route", logits.dim(0), shared, choose<A>, args, Options(options));
  });
}

void route_backward(Lane& lane, const Tensor& dprobs, const Tensor& logits, const Tensor& experts,
                    const RouterOptions& options, const Tensor& dlogits) {
  const Index n = logits.dim(1);
  check_experts_fit(n);
  visit_accumulator(logits.dtype(), [&]<class A>(A) {
    const RouteBackwardArgs<A> args{
        data<A>(dprobs),  data<A>(logits), logits.ld(),   data<std::int32_t>(experts),
        data<A>(dlogits), dlogits.ld(),    logits.dim(0), static_cast<int>(n)};
    const std::size_t shared = kRouterWarps * static_cast<std::size_t>(n + options.topk) * sizeof(A);
    launch(lane, "run route_backward", logits.dim(0), shared, choose_backward<A>, args, Options(options));
  });
}

void count_experts(Lane& lane, const Tensor& experts, const Tensor& out) {
  const int n = static_cast<int>(out.elems());
  check_experts_fit(n);
  count<<<1, kCountThreads, static_cast<std::size_t>(n) * sizeof(int), stream(lane)>>>(
      data<std::int32_t>(experts), experts.elems(), data<double>(out), n);
  launched("run count_experts");
}

}  // namespace weft::ops::cuda
