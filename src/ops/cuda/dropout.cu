#include <algorithm>
#include <cmath>

#include "core/rng.hpp"
#include "ops/cuda/spans.cuh"
#include "ops/cuda/tools.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {

// The site's mask, of the samples of one launch. An element is kept when uniform(word) ≥ p: bits >> 8 against
// p · 2²⁴ in integers.
struct Mask {
  RandomKey key;
  std::uint32_t threshold;
  double scale;
  RowPositions tokens;
  std::int64_t first_channel;
  const std::int64_t* samples;  // device memory

  // Factors of channels [j, j + N) of sample b: 1 / (1 − p) or 0. N above 1: first_channel + j is a multiple
  // of N or of 4.
  template <class A, int N>
  __device__ void factors(Index t, Index b, Index j, A* out) const {
    const auto token = static_cast<std::uint32_t>(tokens.of(t));
    const auto sample = static_cast<std::uint64_t>(samples[b]);
    const auto channel = static_cast<std::uint64_t>(first_channel + j);
    const auto kept = static_cast<A>(scale);
    constexpr int kWords = N < 4 ? N : 4;
#pragma unroll
    for (int i = 0; i < N; i += kWords) {
      const auto block = static_cast<std::uint32_t>((channel + i) / 4);
      const Philox words = philox(key, block | static_cast<std::uint64_t>(token) << 32, sample);
      const int skip = N < 4 ? static_cast<int>(channel % 4) : 0;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const int at = skip + w;  // chosen by comparisons: an array with a computed index lies in memory
        const std::uint32_t bits = at == 0 ? words[0] : at == 1 ? words[1] : at == 2 ? words[2] : words[3];
        out[i + w] = (bits >> 8) >= threshold ? kept : A{0};
      }
    }
  }
};

template <class T, bool kMasked, bool kBias, bool kResidual>
struct BiasDropoutAdd {
  static constexpr int kUnroll = 2;
  const T *x, *bias, *residual;
  Index x_ld, residual_ld;
  T* out;
  Index out_ld, batch;
  Mask mask;

  template <int N>
  struct In {
    Vec<T, N> x, bias, residual;
  };
  template <int N>
  __device__ In<N> load(Index t, Index b, Index j) const {
    const Index row = t * batch + b;
    In<N> in;
    in.x = cuda::load<N>(x + row * x_ld + j);
    if constexpr (kBias) in.bias = cuda::load<N>(bias + j);
    if constexpr (kResidual) in.residual = cuda::load<N>(residual + row * residual_ld + j);
    return in;
  }
  template <int N>
  __device__ void run(Index t, Index b, Index j, const In<N>& in) const {
    Acc<T> factors[N];
    if constexpr (kMasked) mask.template factors<Acc<T>, N>(t, b, j, factors);
    Vec<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Acc<T> v = to_acc(in.x.v[i]);
      if constexpr (kBias) v += to_acc(in.bias.v[i]);
      if constexpr (kMasked) v *= factors[i];
      if constexpr (kResidual) v += to_acc(in.residual.v[i]);
      result.v[i] = from_acc<T>(v);
    }
    store(out + (t * batch + b) * out_ld + j, result);
  }
};

void run(Lane& lane, const Tensor& x, const Tensor& bias, const Tensor& residual, const DropoutSite& site,
         const Tensor& out, const char* what) {
  const bool masked = site.p > 0;
  visit_floating(x.dtype(), [&]<class T>(T) {
    constexpr int N = kPerVector<T>;
    const bool vectors = vectorizable(x, N) && vectorizable(residual, N) && vectorizable(out, N) &&
                         aligned(bias, N) && (!masked || site.first_channel % std::max(N, 4) == 0);
    const auto with = [&]<bool kMasked, bool kBias, bool kResidual>() {
      BiasDropoutAdd<T, kMasked, kBias, kResidual> op{};
      op.x = data<T>(x), op.x_ld = x.ld();
      if (kBias) op.bias = data<T>(bias);
      if (kResidual) op.residual = data<T>(residual), op.residual_ld = residual.ld();
      op.out = data<T>(out), op.out_ld = out.ld();
      op.batch = x.dim(1);
      if (kMasked) {
        op.mask = {.key = site.key,
                   .threshold = static_cast<std::uint32_t>(std::ceil(site.p * 0x1p24)),
                   .scale = 1.0 / (1.0 - site.p),
                   .tokens = site.tokens,
                   .first_channel = site.first_channel,
                   .samples = data<std::int64_t>(site.sample_ids)};
      }
      for_tokens<N>(stream(lane), what, op, x.dim(0), op.batch, x.columns(), vectors);
    };
    const auto with_mask = [&]<bool kMasked>() {
      if (bias.defined()) {
        residual.defined() ? with.template operator()<kMasked, true, true>()
                           : with.template operator()<kMasked, true, false>();
      } else {
        residual.defined() ? with.template operator()<kMasked, false, true>()
                           : with.template operator()<kMasked, false, false>();
      }
    };
    masked ? with_mask.template operator()<true>() : with_mask.template operator()<false>();
  });
}

}  // namespace

void bias_dropout_add(Lane& lane, const Tensor& x, const Tensor& bias, const Tensor& residual,
                      const DropoutSite& site, const Tensor& out) {
  run(lane, x, bias, residual, site, out, "run bias_dropout_add");
}

void dropout_backward(Lane& lane, const Tensor& dout, const DropoutSite& site, const Tensor& dx) {
  run(lane, dout, {}, {}, site, dx, "run dropout_backward");
}

}  // namespace weft::ops::cuda
