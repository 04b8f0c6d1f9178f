#include "ops/moe.hpp"

#include "ops/cuda/views.hpp"

namespace weft {
namespace {

using namespace test;
using ops::RouterOptions;
using ops::RouterScore;

class CudaMoe : public OnGpuViews {
 protected:
  // Of the [0, experts) that are not −1 each with the same chance.
  Tensor random_experts(std::int64_t n, std::int64_t k, std::int64_t experts, bool holes,
                        std::uint64_t seed) {
    Tensor x = zeros(cpu(), DType::kI32, {n, k});
    for (std::int64_t i = 0; i < n * k; ++i) {
      const auto bits = philox(RandomKey{seed}, static_cast<std::uint64_t>(i));
      set_element(
          x, i,
          holes && bits[1] % 5 == 0 ? -1 : static_cast<double>(bits[0] % static_cast<unsigned>(experts)));
    }
    return x;
  }
  Tensor counted(std::int64_t n) {
    Tensor x = cpu().alloc(DType::kU8, {n}, "test");
    for (std::int64_t i = 0; i < n; ++i) x.data<std::uint8_t>()[i] = i % 7 == 3 ? 0 : 1;
    return x;
  }
  Tensor bytes_to_gpu(const Tensor& x) {
    if (!x.defined()) return {};
    Tensor y = gpu().alloc(x.dtype(), x.shape(), "test");
    ops::copy(gpu(), x, y);
    return y;
  }
};

struct RouterCase {
  std::int64_t n, experts;
  RouterOptions options;
};
std::vector<RouterCase> router_cases() {
  std::vector<RouterCase> cases;
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSoftmaxOverAll, RouterScore::kSigmoid}) {
    cases.push_back({33, 8, {.topk = 2, .score = score}});
    cases.push_back({1, 1, {.topk = 1, .score = score}});
    cases.push_back({70, 5, {.topk = 1, .score = score, .scale = 2.5}});
    cases.push_back({257, 128, {.topk = 8, .score = score}});
    cases.push_back({9, 300, {.topk = 40, .score = score, .scale = 0.5}});
    cases.push_back({60, 64, {.topk = 6, .score = score, .groups = 8, .group_topk = 3, .scale = 2.5}});
    cases.push_back({20, 96, {.topk = 4, .score = score, .groups = 4, .group_topk = 2}});
  }
  return cases;
}

TEST_F(CudaMoe, RouteAndItsDerivative) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const RouterCase& c : router_cases()) {
      for (const bool with_bias : {false, true}) {
        const Tensor logits = normals(dtype, {c.n, c.experts}, 1, Layout::kOdd, 2);
        const Tensor bias = with_bias ? normals(dtype, {c.experts}, 2) : Tensor();
        const Tensor mask = with_bias ? counted(c.n) : Tensor();
        const ops::Routing want = ops::route(cpu(), to_cpu(logits), to_cpu(bias), mask, c.options);
        poison();
        const ops::Routing got = ops::route(gpu(), logits, bias, bytes_to_gpu(mask), c.options);
        EXPECT_TRUE(same_bits(to_cpu(got.experts), want.experts)) << c.experts << " top " << c.options.topk;
        expect_close(got.probs, want.probs, rounding(dtype) * 2, "probs");
        // Some choices dropped.
        const Tensor experts = want.experts;
        for (std::int64_t i = 0; i < experts.elems(); i += 3) set_element(experts, i, -1);
        const Tensor dprobs = normals(dtype, want.probs.shape(), 3);
        const Tensor expected =
            ops::route_backward(cpu(), to_cpu(dprobs), to_cpu(logits), {want.probs, experts}, c.options);
        poison();
        const Tensor dlogits =
            ops::route_backward(gpu(), dprobs, logits, {got.probs, to_gpu(experts)}, c.options);
        expect_close(dlogits, expected, rounding(dtype) * 4, "dlogits");
      }
    }
  }
}

TEST_F(CudaMoe, EqualScoresByNumber) {
  const Tensor logits = to_gpu(constant(cpu(), DType::kF32, {3, 70}, 1));
  const ops::Routing r = ops::route(gpu(), logits, {}, {}, {.topk = 4});
  const Tensor experts = to_cpu(r.experts);
  for (std::int64_t i = 0; i < experts.elems(); ++i)
    EXPECT_EQ(element(experts, i), static_cast<double>(i % 4));
  const Tensor nan = to_gpu(constant(cpu(), DType::kF32, {2, 40}, std::nan("")));
  const Tensor all = to_cpu(ops::route(gpu(), nan, {}, {}, {.topk = 3}).experts);
  for (std::int64_t i = 0; i < all.elems(); ++i) EXPECT_GE(element(all, i), 0);
}

TEST_F(CudaMoe, BalanceLosses) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const RouterCase& c : router_cases()) {
      for (const std::int64_t groups : {1, 3}) {
        const Tensor logits = normals(dtype, {c.n, c.experts}, 1, Layout::kOdd, 2), mask = counted(c.n),
                     device_mask = bytes_to_gpu(mask);
        const Tensor want = ops::balance_sums(cpu(), to_cpu(logits), mask, groups, c.options);
        poison();
        const Tensor got = ops::balance_sums(gpu(), logits, device_mask, groups, c.options);
        expect_close(got, want, dtype == DType::kF32 ? 1e-6 : 1e-13, "sums");
        EXPECT_TRUE(same_on_gpu(got, ops::balance_sums(gpu(), logits, device_mask, groups, c.options)));
        const ops::BalanceWeights weights{.aux = 3, .z = 0.7};
        const Tensor dlogits = normals(dtype, logits.shape(), 4, Layout::kOdd), expected = to_cpu(dlogits);
        ops::balance_backward(cpu(), to_cpu(logits), mask, want, c.options, weights, expected);
        ops::balance_backward(gpu(), logits, device_mask, to_gpu(want), c.options, weights, dlogits);
        expect_close(dlogits, expected, rounding(dtype) * 4, "dlogits");
        const Tensor losses = make(cpu(), DType::kF64, {2}, {1, 2}), device_losses = to_gpu(losses);
        ops::balance_losses(cpu(), want, c.options, 0.5, losses);
        ops::balance_losses(gpu(), to_gpu(want), c.options, 0.5, device_losses);
        expect_close(device_losses, losses, 1e-13, "losses");
      }
    }
  }
  expect_borders();
}

TEST_F(CudaMoe, OrderCountsAndOwnExperts) {
  struct Size {
    std::int64_t n, k, experts;
  };
  for (const Size& s :
       {Size{1, 1, 1}, {5, 2, 3}, {300, 3, 7}, {1000, 8, 128}, {700, 2, 1}, {41, 6, 600}, {0, 2, 4}}) {
    for (const bool holes : {false, true}) {
      const Tensor experts = random_experts(s.n, s.k, s.experts, holes, 5), device = bytes_to_gpu(experts);
      for (const std::int64_t padded : {std::int64_t{0}, s.n * s.k + 3}) {
        const ops::ExpertOrder want = ops::expert_order(cpu(), experts, s.experts, padded);
        poison();
        const ops::ExpertOrder got = ops::expert_order(gpu(), device, s.experts, padded);
        EXPECT_TRUE(same_bits(to_cpu(got.rows), want.rows)) << s.n << " " << s.experts;
        EXPECT_TRUE(same_bits(to_cpu(got.offsets), want.offsets)) << s.n << " " << s.experts;
      }
      const Tensor counts = constant(cpu(), DType::kF64, {s.experts}, 2), device_counts = to_gpu(counts);
      ops::count_experts(cpu(), experts, counts);
      ops::count_experts(gpu(), device, device_counts);
      EXPECT_TRUE(same_bits(to_cpu(device_counts), counts));
      const Tensor own = ops::own_experts(cpu(), experts, 1, s.experts / 2);
      EXPECT_TRUE(same_bits(to_cpu(ops::own_experts(gpu(), device, 1, s.experts / 2)), own));
    }
  }
}

TEST_F(CudaMoe, DropOverCapacity) {
  for (const bool by_position : {false, true}) {
    for (const std::int64_t capacity : {0, 1, 20, 60, 1000}) {
      const std::int64_t n = 300, k = 3, experts = 9;
      const Tensor chosen = random_experts(n, k, experts, true, 6),
                   probs = random(cpu(), DType::kF32, {n, k}, 7);
      for (std::int64_t i = 0; i < n * k; ++i) {  // some are equal
        set_element(probs, i, std::round(4 * element(probs, i)) / 4);
        if (element(chosen, i) < 0) set_element(probs, i, 0);
      }
      Values places(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < places.size(); ++i)
        places[i] = static_cast<double>((i * 7) % static_cast<std::size_t>(n));
      const Tensor place = make(cpu(), DType::kI32, {n}, places);
      const Tensor device_probs = to_gpu(probs), device_chosen = bytes_to_gpu(chosen);
      ops::drop_over_capacity(cpu(), {probs, chosen}, place, experts, capacity, by_position);
      ops::drop_over_capacity(gpu(), {device_probs, device_chosen}, to_gpu(place), experts, capacity,
                              by_position);
      EXPECT_TRUE(same_bits(to_cpu(device_chosen), chosen)) << capacity;
      EXPECT_TRUE(same_bits(to_cpu(device_probs), probs)) << capacity;
    }
  }
}

TEST_F(CudaMoe, RowsToExpertsAndBack) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t h : {1, 24, 200}) {
      for (const Layout layout : kLayouts) {
        const std::int64_t n = 37, k = 10, experts = 6;
        const Tensor chosen = random_experts(n, k, experts, true, 8);
        for (const std::int64_t padded : {0, 100}) {
          const ops::ExpertOrder order = ops::expert_order(cpu(), chosen, experts, padded);
          const std::int64_t rows = padded > 0 ? experts * padded : n * k;
          const Tensor device_rows = bytes_to_gpu(order.rows);
          const Tensor x = normals(dtype, {n, h}, 1, layout), out = view(dtype, {rows, h}, layout);
          const Tensor want = cpu().alloc(dtype, {rows, h}, "test");
          ops::spread_rows(cpu(), to_cpu(x), order.rows, want);
          poison();
          ops::spread_rows(gpu(), x, device_rows, out);
          EXPECT_TRUE(same_bits(to_cpu(out), want)) << name_of(dtype) << h;
          const Tensor y = normals(dtype, {rows, h}, 2, layout);
          expect_close(ops::collect_rows(gpu(), y, device_rows),
                       ops::collect_rows(cpu(), to_cpu(y), order.rows), rounding(dtype), "collect_rows");
          const Tensor values = normals(dtype, {n, k}, 3),
                       of_rows = gpu_like(constant(cpu(), dtype, {rows}, 0));
          const Tensor want_rows = cpu().alloc(dtype, {rows}, "test");
          ops::spread_values(cpu(), to_cpu(values), order.rows, want_rows);
          ops::spread_values(gpu(), values, device_rows, of_rows);
          EXPECT_TRUE(same_bits(to_cpu(of_rows), want_rows));
          EXPECT_TRUE(same_bits(to_cpu(ops::collect_values(gpu(), of_rows, device_rows)),
                                ops::collect_values(cpu(), want_rows, order.rows)));
        }
        expect_borders();
      }
    }
  }
}

TEST_F(CudaMoe, ScaledActivations) {
  for (const DType dtype : kFloating) {
    for (const ops::ActivationName& kind : ops::kActivations) {
      for (const bool gated : {false, true}) {
        for (const std::int64_t f : {5, 96, 2304}) {
          const Layout layout = f == 96 ? Layout::kAligned : Layout::kCompact;
          const std::int64_t rows = 19;
          const Tensor x = normals(dtype, {rows, gated ? 2 * f : f}, 1, layout),
                       dy = normals(dtype, {rows, f}, 2, layout),
                       scale = normals(accumulator_of(dtype), {rows}, 3);
          const Tensor wide_x = wide(x), wide_scale = wide(scale);
          poison();
          const Tensor y = ops::scaled_activation(gpu(), kind.value, gated, x, scale);
          expect_close(y, ops::scaled_activation(cpu(), kind.value, gated, wide_x, wide_scale),
                       rounding(dtype) * 2, kind.name);
          const ops::ScaledActivationGradient want =
              ops::scaled_activation_backward(cpu(), kind.value, gated, wide(dy), wide_x, wide_scale);
          poison();
          const ops::ScaledActivationGradient got =
              ops::scaled_activation_backward(gpu(), kind.value, gated, dy, x, scale);
          expect_close(got.dx, want.dx, rounding(dtype) * 2, kind.name);
          expect_close(got.dscale, want.dscale, bytes_of(dtype) == 2 ? 1e-4 : rounding(dtype) * 10,
                       kind.name);
          EXPECT_TRUE(same_on_gpu(got.y, y)) << kind.name << name_of(dtype) << gated << f;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
