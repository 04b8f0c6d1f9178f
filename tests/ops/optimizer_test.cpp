#include "ops/optimizer.hpp"

#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

TEST(Optimizer, AdamWOfAllSizesAndWeightTypes) {
  for (const DType master_type : {DType::kF32, DType::kF64}) {
    for (const DType weight_type : kFloating) {
      for (const std::int64_t n : {1, 3, 17, 1025, 40000}) {
        Bench bench(2);
        Lane& lane = bench.lane;
        const Tensor p = random(lane, master_type, {n}, 1), grad = random(lane, master_type, {n}, 2);
        const Tensor m = random(lane, master_type, {n}, 3), v = zeros(lane, master_type, {n});
        for (std::int64_t i = 0; i < n; ++i) set_element(v, i, std::fabs(element(m, i)) * 0.3);
        const Tensor weight = zeros(lane, weight_type, {n});
        const ops::AdamWStep step{0.01, 0.9, 0.95, 1e-8, 0.1, 3, 0.25};
        Values ep = values_of(p), em = values_of(m), ev = values_of(v);
        for (std::size_t i = 0; i < ep.size(); ++i) {
          const double g = 0.25 * element(grad, static_cast<std::int64_t>(i));
          ep[i] -= 0.01 * 0.1 * ep[i];
          em[i] = 0.9 * em[i] + 0.1 * g;
          ev[i] = 0.95 * ev[i] + 0.05 * g * g;
          ep[i] -= 0.01 / (1 - std::pow(0.9, 3)) * em[i] /
                   (std::sqrt(ev[i]) / std::sqrt(1 - std::pow(0.95, 3)) + 1e-8);
        }
        ops::adamw(lane, step, one_piece(lane, p), {p, m, v, grad, weight});
        const double tolerance = unit(master_type) * 8;
        expect_near(p, ep, tolerance, "p");
        expect_near(m, em, tolerance, "m");
        expect_near(v, ev, tolerance, "v");
        expect_near(weight, ep, tolerance + unit(weight_type) * 1.01, "weight");
        Bench three(3);
        const Tensor q = make(lane, master_type, {n}, values_of(p)),
                     m2 = make(lane, master_type, {n}, values_of(m));
        const Tensor v2 = make(lane, master_type, {n}, values_of(v));
        ops::adamw(lane, step, one_piece(lane, p),
                   {p, m, v, grad, p});  // the weight may be the master itself
        ops::adamw(three.lane, step, one_piece(three.lane, q), {q, m2, v2, grad, q});
        EXPECT_TRUE(same_bits(p, q));
        EXPECT_TRUE(same_bits(v, v2));
      }
    }
  }
}

// Rows that pad a vocabulary never have a gradient: with eps 0 they must not become 0 / 0.
TEST(Optimizer, AdamWWithoutEpsilonLeavesUntouchedWeightsAlone) {
  Bench bench;
  const Tensor p = make(bench.lane, DType::kF32, {2}, {0.5, 0.5}), m = zeros(bench.lane, DType::kF32, {2});
  const Tensor v = zeros(bench.lane, DType::kF32, {2}), grad = make(bench.lane, DType::kF32, {2}, {0, 1});
  ops::adamw(bench.lane, {1e-3, 0.9, 0.999, 0, 0, 1, 1}, one_piece(bench.lane, p), {p, m, v, grad, p});
  EXPECT_EQ(element(p, 0), 0.5);
  EXPECT_NEAR(element(p, 1), 0.499, 1e-7);
}

TEST(Optimizer, SgdWithAndWithoutMomentum) {
  Bench bench(2);
  Lane& lane = bench.lane;
  const std::int64_t n = 1025;
  const Tensor p = random(lane, DType::kF64, {n}, 1), grad = random(lane, DType::kF64, {n}, 2);
  const Tensor weight = zeros(lane, DType::kBF16, {n});
  const ops::FlatPieces whole = one_piece(lane, p);
  Values expected = values_of(p);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] -= 0.1 * (2 * element(grad, static_cast<std::int64_t>(i)) + 0.01 * expected[i]);
  }
  ops::sgd(lane, {0.1, 0, 0.01, true, 2}, whole, {p, {}, grad, weight});
  expect_near(p, expected, 1e-15, "p");
  expect_near(weight, expected, unit(DType::kBF16) * 1.01, "weight");
  EXPECT_THROW(ops::sgd(lane, {0.1, 0.9, 0, true, 1}, whole, {p, {}, grad, weight}), Error);
  EXPECT_THROW(ops::adamw(lane, {}, whole, {p, p, p, zeros(lane, DType::kF32, {n}), weight}), Error);
}

}  // namespace
}  // namespace weft
