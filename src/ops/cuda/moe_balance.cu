// Losses that balance experts: a warp to a token; sums over tokens go through partial sums of fixed rows.
#include <algorithm>

#include "ops/cuda/router_scores.cuh"
#include "ops/cuda/tools.hpp"

namespace weft::ops::cuda {
namespace {

constexpr int kThreads = 32 * kRouterWarps;

// The scores that the losses are about; returns Σ sigmoid (+ 1e-20) for sigmoids.
template <class A>
__device__ A balance_scores(bool sigmoids, const A* logits, int n, A* scores) {
  if (!sigmoids) {
    softmax(
        n, [&](int e) { return logits[e]; }, scores);
    return A{1};
  }
  const int lane = threadIdx.x % 32;
  A sum = 0;
  for (int e = lane; e < n; e += 32) sum += scores[e] = sigmoid(logits[e]);
  sum = warp_sum(sum) + static_cast<A>(kScoreEpsilon);
  for (int e = lane; e < n; e += 32) scores[e] /= sum;
  __syncwarp();
  return sum;
}

template <class A>
struct Rows {
  const A* logits;
  Index ld, rows, groups;
  const std::uint8_t* counted;  // or null
  int experts, k;
  bool sigmoids;
};

// Each group is cut into this many pieces.
Index pieces_of_group(Index rows, Index groups) {
  const Index most = std::max<Index>(1, 512 / groups);
  return std::clamp<Index>((rows / groups + 2 * kRouterWarps - 1) / (2 * kRouterWarps), 1, most);
}

// Block (piece, group): its rows' sums, columns as in balance_sums. Warps score kRouterWarps rows at a time,
// then every thread adds those to its columns, in their order.
template <class A>
__global__ void __launch_bounds__(kThreads) sum_rows(const Rows<A> p, double* partial) {
  extern __shared__ __align__(16) std::byte shared[];
  const int n = p.experts, lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = 2 * n + 2;
  auto* sums = reinterpret_cast<double*>(shared);
  A* scores = reinterpret_cast<A*>(sums + columns);
  auto* chosen = reinterpret_cast<std::uint8_t*>(scores + kRouterWarps * n);
  __shared__ A sums_exp[kRouterWarps];
  __shared__ bool is_there[kRouterWarps];
  for (int c = threadIdx.x; c < columns; c += kThreads) sums[c] = 0;
  const Index of_group = (p.rows - blockIdx.y + p.groups - 1) / p.groups;
  const Index first = of_group * blockIdx.x / gridDim.x, end = of_group * (blockIdx.x + 1) / gridDim.x;
  for (Index i = first; i < end; i += kRouterWarps) {
    const Index row = (i + warp) * p.groups + blockIdx.y;
    const bool here = i + warp < end && (p.counted == nullptr || p.counted[row] != 0);
    if (lane == 0) is_there[warp] = here;
    if (here) {
      const A* logits = p.logits + row * p.ld;
      A* mine = scores + warp * n;
      const A lse = softmax(
          n, [&](int e) { return logits[e]; }, mine);
      if (p.sigmoids) balance_scores(true, logits, n, mine);
      if (lane == 0) sums_exp[warp] = lse;
      for (int e = lane; e < n; e += 32) chosen[warp * n + e] = 0;
      __syncwarp();
      Best best;
      best.open(0, n);
      for (int j = 0; j < p.k; ++j) {
        const int e = best.take(mine, 0, n);
        if (lane == 0) chosen[warp * n + e] = 1;
      }
    }
    __syncthreads();
    for (int w = 0; w < kRouterWarps; ++w) {
      if (!is_there[w]) continue;
      for (int e = threadIdx.x; e < n; e += kThreads) {
        sums[e] += static_cast<double>(scores[w * n + e]);
        sums[n + e] += chosen[w * n + e];
      }
      if (threadIdx.x == 0) {
        sums[2 * n] += 1;
        sums[2 * n + 1] += static_cast<double>(sums_exp[w]) * static_cast<double>(sums_exp[w]);
      }
    }
    __syncthreads();
  }
  double* out = partial + (Index{blockIdx.y} * gridDim.x + blockIdx.x) * columns;
  for (int c = threadIdx.x; c < columns; c += kThreads) out[c] = sums[c];
}

__global__ void __launch_bounds__(kThreads)
    add_pieces(const double* partial, Index pieces, int columns, double* sums) {
  const int c = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (c >= columns) return;
  double sum = 0;
  for (Index i = 0; i < pieces; ++i) sum += partial[(blockIdx.y * pieces + i) * columns + c];
  sums[Index{blockIdx.y} * columns + c] = sum;
}

// What the sums say of the whole, found by a warp.
struct Whole {
  __device__ Whole(const double* sums, Index groups, int columns) {
    for (Index g = threadIdx.x % 32; g < groups; g += 32) {
      const double* of_group = sums + g * columns;
      tokens += of_group[columns - 2];
      squares += of_group[columns - 1];
      if (of_group[columns - 2] > 0) filled += 1;
    }
    tokens = warp_sum(tokens);
    squares = warp_sum(squares);
    filled = warp_sum(filled);
  }
  // Of Σ_e (Σ score · Σ chosen) of a group in the mean over groups; 0 for one without tokens.
  __device__ double factor(const double* of_group, int experts, int k) const {
    const double t = of_group[2 * experts];
    return t <= 0 ? 0 : experts / (k * t * t) / filled;
  }
  double tokens = 0, squares = 0, filled = 0;
};

template <class A>
__global__ void __launch_bounds__(kThreads)
    add_gradients(const Rows<A> p, const double* sums, const BalanceWeights weights, A* dlogits,
                  Index dlogits_ld) {
  extern __shared__ __align__(16) std::byte shared[];
  const int n = p.experts, lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = 2 * n + 2;
  A* scores = reinterpret_cast<A*>(shared) + warp * n;
  const Whole whole(sums, p.groups, columns);
  for (Index row = Index{blockIdx.x} * kRouterWarps + warp; row < p.rows;
       row += Index{gridDim.x} * kRouterWarps) {
    if (p.counted != nullptr && p.counted[row] == 0) continue;
    const A* logits = p.logits + row * p.ld;
    A* out = dlogits + row * dlogits_ld;
    if (weights.aux != 0) {
      const double* of_group = sums + row % p.groups * columns;
      const double *chosen = of_group + n, factor = weights.aux * whole.factor(of_group, n, p.k);
      const A sum = balance_scores(p.sigmoids, logits, n, scores);
      double mean = 0;
      for (int e = lane; e < n; e += 32) mean += chosen[e] * static_cast<double>(scores[e]);
      mean = warp_sum(mean);
      for (int e = lane; e < n; e += 32) {
        // d score / d logit without the part that all share: softmax's own, or σ' / Σσ.
        const A slope = p.sigmoids ? scores[e] * (A{1} - scores[e] * sum) : scores[e];
        out[e] += static_cast<A>(factor * (chosen[e] - mean)) * slope;
      }
      __syncwarp();
    }
    if (weights.z != 0) {
      const A lse = softmax(
          n, [&](int e) { return logits[e]; }, scores);
      const auto factor = static_cast<A>(weights.z * 2 * static_cast<double>(lse) / fmax(whole.tokens, 1.0));
      for (int e = lane; e < n; e += 32) out[e] += factor * scores[e];
      __syncwarp();
    }
  }
}

__global__ void __launch_bounds__(32)
    add_losses(const double* sums, Index groups, int experts, int k, double weight, double* out) {
  const int columns = 2 * experts + 2, lane = threadIdx.x;
  const Whole whole(sums, groups, columns);
  double aux = 0;
  for (Index g = 0; g < groups; ++g) {
    const double* of_group = sums + g * columns;
    double product = 0;
    for (int e = lane; e < experts; e += 32) product += of_group[e] * of_group[experts + e];
    aux += whole.factor(of_group, experts, k) * warp_sum(product);
  }
  if (lane != 0) return;
  out[0] += weight * aux;
  if (whole.tokens > 0) out[1] += weight * whole.squares / whole.tokens;
}

template <class A>
Rows<A> rows_of(const Tensor& logits, const Tensor& counted, Index groups, const RouterOptions& options) {
  check_experts_fit(logits.dim(1));
  return {data<A>(logits),
          logits.ld(),
          logits.dim(0),
          groups,
          counted.defined() ? data<std::uint8_t>(counted) : nullptr,
          static_cast<int>(logits.dim(1)),
          options.topk,
          options.score == RouterScore::kSigmoid};
}

template <class Body>
void visit_accumulator(DType dtype, Body&& body) {
  dtype == DType::kF64 ? body(double{}) : body(float{});
}

template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "use shared memory for the router");
}

}  // namespace

std::int64_t balance_sums_scratch(const Lane&, const Tensor& logits, std::int64_t groups) {
  return groups * pieces_of_group(logits.dim(0), groups) * (2 * logits.dim(1) + 2);
}

void balance_sums(Lane& lane, const Tensor& logits, const Tensor& counted, const RouterOptions& options,
                  const Tensor& sums, const Tensor& scratch) {
  const Index groups = sums.dim(0), pieces = pieces_of_group(logits.dim(0), groups);
  const int columns = static_cast<int>(sums.dim(1)), n = static_cast<int>(logits.dim(1));
  visit_accumulator(logits.dtype(), [&]<class A>(A) {
    const std::size_t shared = static_cast<std::size_t>(columns) * sizeof(double) +
                               kRouterWarps * static_cast<std::size_t>(n) * (sizeof(A) + 1);
    allow_shared(sum_rows<A>, shared);
    const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(groups));
    sum_rows<A><<<grid, kThreads, shared, stream(lane)>>>(rows_of<A>(logits, counted, groups, options),
                                                          data<double>(scratch));
    launched("run balance_sums");
  });
  add_pieces<<<dim3(blocks_for(columns, kThreads), static_cast<unsigned>(groups)), kThreads, 0,
               stream(lane)>>>(data<double>(scratch), pieces, columns, data<double>(sums));
  launched("run balance_sums");
}

void balance_backward(Lane& lane, const Tensor& logits, const Tensor& counted, const Tensor& sums,
                      const RouterOptions& options, const BalanceWeights& weights, const Tensor& dlogits) {
  if (logits.dim(0) == 0) return;
  visit_accumulator(logits.dtype(), [&]<class A>(A) {
    const std::size_t shared = kRouterWarps * static_cast<std::size_t>(logits.dim(1)) * sizeof(A);
    allow_shared(add_gradients<A>, shared);
    const unsigned blocks = std::min(blocks_for(logits.dim(0), kRouterWarps),
                                     static_cast<unsigned>(tools(lane).multiprocessors) * 16);
    add_gradients<A><<<blocks, kThreads, shared, stream(lane)>>>(
        rows_of<A>(logits, counted, sums.dim(0), options), data<double>(sums), weights, data<A>(dlogits),
        dlogits.ld());
    launched("run balance_backward");
  });
}

void balance_losses(Lane& lane, const Tensor& sums, const RouterOptions& options, double weight,
                    const Tensor& out) {
  add_losses<<<1, 32, 0, stream(lane)>>>(data<double>(sums), sums.dim(0),
                                         static_cast<int>(sums.dim(1) / 2 - 1), options.topk, weight,
                                         data<double>(out));
  launched("run balance_losses");
}

}  // namespace weft::ops::cuda
