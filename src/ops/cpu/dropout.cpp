#include "ops/cpu/random_mask.hpp"
#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {
namespace {

constexpr Index kRun = 512;  // mask factors made at a time

// Calls body(r, j, n, factors) on runs of each row of x [s, b, h]; factors is null when nothing is dropped.
template <class A, class Body>
void for_masked_runs(Lane& lane, const Tensor& x, const DropoutSite& site, const Body& body) {
  const Index h = x.columns(), batch = x.dim(1);
  const Keep keep(site.p);
  const std::int64_t* samples = site.p > 0 ? site.sample_ids.data<std::int64_t>() : nullptr;
  for_rows(lane, x.rows(), h, [&](Index begin, Index end) {
    A factors[kRun];
    for (Index r = begin; r < end; ++r) {
      if (samples == nullptr) {
        body(r, Index{0}, h, static_cast<const A*>(nullptr));
        continue;
      }
      const auto token = static_cast<std::uint32_t>(site.tokens.of(r / batch));
      const auto sample = static_cast<std::uint64_t>(samples[r % batch]);
      for (Index j = 0; j < h; j += kRun) {
        const Index n = std::min(kRun, h - j);
        keep_factors(site.key, keep, site.first_channel + j, token, sample, n, factors);
        body(r, j, n, static_cast<const A*>(factors));
      }
    }
  });
}

}  // namespace

void bias_dropout_add(Lane& lane, const Tensor& x, const Tensor& bias, const Tensor& residual,
                      const DropoutSite& site, const Tensor& out) {
  visit_floating(x.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    const auto with = [&](auto has_bias, auto has_residual) {
      for_masked_runs<A>(lane, x, site, [&](Index r, Index j, Index n, const A* __restrict factors) {
        const T* __restrict in = x.data<T>() + r * x.ld() + j;
        const T* __restrict b = has_bias ? bias.data<T>() + j : nullptr;
        const T* __restrict base = has_residual ? residual.data<T>() + r * residual.ld() + j : nullptr;
        T* __restrict to = out.data<T>() + r * out.ld() + j;
        const auto run = [&](auto masked) {
          for (Index i = 0; i < n; ++i) {
            A v = to_acc(in[i]);
            if constexpr (has_bias) v += to_acc(b[i]);
            if constexpr (masked) v *= factors[i];
            if constexpr (has_residual) v += to_acc(base[i]);
            to[i] = from_acc<T>(v);
          }
        };
        factors != nullptr ? run(std::true_type{}) : run(std::false_type{});
      });
    };
    constexpr std::true_type kYes;
    constexpr std::false_type kNo;
    if (bias.defined()) {
      residual.defined() ? with(kYes, kYes) : with(kYes, kNo);
    } else {
      residual.defined() ? with(kNo, kYes) : with(kNo, kNo);
    }
  });
}

void dropout_backward(Lane& lane, const Tensor& dout, const DropoutSite& site, const Tensor& dx) {
  visit_floating(dout.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    for_masked_runs<A>(lane, dout, site, [&](Index r, Index j, Index n, const A* __restrict factors) {
      const T* __restrict in = dout.data<T>() + r * dout.ld() + j;
      T* __restrict to = dx.data<T>() + r * dx.ld() + j;
      for (Index i = 0; i < n; ++i) to[i] = from_acc<T>(to_acc(in[i]) * factors[i]);
    });
  });
}

}  // namespace weft::ops::cpu
