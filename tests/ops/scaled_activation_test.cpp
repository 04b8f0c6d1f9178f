#include "ops/activation.hpp"
#include "ops/moe.hpp"
#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;
using ops::Activation;

Tensor wide(Lane& lane, const Tensor& x) {
  return make(lane, DType::kF64, x.shape(), values_of(x));
}

// The activation of the rows in double, times the number of each.
Values scaled(Lane& lane, Activation kind, bool gated, const Tensor& x, const Tensor& scale) {
  const Tensor plain =
      gated ? ops::gated_activation(lane, kind, wide(lane, x)) : ops::activation(lane, kind, wide(lane, x));
  Values y = values_of(plain);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] *= element(scale, static_cast<std::int64_t>(i) / plain.columns());
  }
  return y;
}

TEST(ScaledActivation, IsTheActivationTimesTheScale) {
  for (const DType dtype : kFloating) {
    for (const ops::ActivationName& row : ops::kActivations) {
      for (const bool gated : {false, true}) {
        for (const Shape& shape : std::vector<Shape>{{1, 2}, {9, 34}, {3, 2200}, {0, 4}}) {
          Bench bench(2);
          Lane& lane = bench.lane;
          const Tensor x = random_strided(lane, dtype, shape, 1, 2),
                       scale = random(lane, accumulator_of(dtype), {shape[0]}, 2);
          expect_near(ops::scaled_activation(lane, row.value, gated, x, scale),
                      scaled(lane, row.value, gated, x, scale),
                      unit(dtype) * 1.01 + unit(accumulator_of(dtype)) * 8, row.name);
        }
      }
    }
  }
}

TEST(ScaledActivation, BackwardIsTheDerivative) {
  for (const ops::ActivationName& row : ops::kActivations) {
    for (const bool gated : {false, true}) {
      Bench bench;
      Lane& lane = bench.lane;
      const Tensor x = random(lane, DType::kF64, {4, 34}, 1, 2), scale = random(lane, DType::kF64, {4}, 2),
                   dy = random(lane, DType::kF64, {4, gated ? 17 : 34}, 3);
      const auto g = ops::scaled_activation_backward(lane, row.value, gated, dy, x, scale);
      const auto loss = [&] { return dot(ops::scaled_activation(lane, row.value, gated, x, scale), dy); };
      expect_gradient(x, values_of(g.dx), loss, std::string("dx ") + row.name);
      expect_gradient(scale, values_of(g.dscale), loss, std::string("dscale ") + row.name);
      EXPECT_TRUE(same_bits(g.y, ops::scaled_activation(lane, row.value, gated, x, scale)));
    }
  }
}

TEST(ScaledActivation, NarrowTypesFollowDouble) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const ops::ActivationName& row : ops::kActivations) {
      for (const bool gated : {false, true}) {
        Bench bench(2);
        Lane& lane = bench.lane;
        const Tensor x = random_strided(lane, dtype, {7, 1300}, 1, 2),
                     scale = random(lane, DType::kF32, {7}, 2),
                     dy = random_strided(lane, dtype, {7, gated ? 650 : 1300}, 3);
        const auto g = ops::scaled_activation_backward(lane, row.value, gated, dy, x, scale);
        const auto exact = ops::scaled_activation_backward(lane, row.value, gated, wide(lane, dy),
                                                           wide(lane, x), wide(lane, scale));
        const double tolerance = unit(dtype) * 1.01 + unit(DType::kF32) * 8;
        expect_near(g.dx, values_of(exact.dx), tolerance, row.name);
        expect_near(g.dscale, values_of(exact.dscale), 1e-6, row.name);
        EXPECT_TRUE(same_bits(g.y, ops::scaled_activation(lane, row.value, gated, x, scale)));
      }
    }
  }
}

TEST(ScaledActivation, WorkersAndMeta) {
  for (const bool gated : {false, true}) {
    Bench one(1), two(2), three(3);
    const std::int64_t f = gated ? 200 : 400;
    const Tensor x = random(one.lane, DType::kBF16, {300, 400}, 1),
                 scale = random(one.lane, DType::kF32, {300}, 2),
                 dy = random(one.lane, DType::kBF16, {300, f}, 3);
    const auto first = ops::scaled_activation_backward(one.lane, Activation::kSilu, gated, dy, x, scale);
    for (Bench* bench : {&two, &three}) {
      const auto g = ops::scaled_activation_backward(bench->lane, Activation::kSilu, gated, dy, x, scale);
      EXPECT_TRUE(same_bits(g.dx, first.dx));
      EXPECT_TRUE(same_bits(g.dscale, first.dscale));
      EXPECT_TRUE(same_bits(g.y, first.y));
    }
    expect_same_plan([&](Lane& lane) {
      const Tensor in = lane.alloc(DType::kBF16, {9, 40}, "x"), s = lane.alloc(DType::kF32, {9}, "scale");
      const Tensor y = ops::scaled_activation(lane, Activation::kSilu, gated, in, s);
      const auto g = ops::scaled_activation_backward(lane, Activation::kSilu, gated, y, in, s);
    });
  }
  Bench bench;
  Lane& lane = bench.lane;
  const Tensor x = zeros(lane, DType::kBF16, {2, 3});
  EXPECT_THROW(ops::scaled_activation(lane, Activation::kSilu, true, x, zeros(lane, DType::kF32, {2})),
               Error);
  EXPECT_THROW(ops::scaled_activation(lane, Activation::kSilu, false, x, zeros(lane, DType::kF32, {3})),
               Error);
  EXPECT_THROW(ops::scaled_activation(lane, Activation::kSilu, false, x, zeros(lane, DType::kBF16, {2})),
               Error);
}

}  // namespace
}  // namespace weft
