#include "ops/activation.hpp"

#include <numbers>

#include "ops/cpu/math.hpp"
#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;
using ops::Activation;

double value(Activation kind, double x) {
  switch (kind) {
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : 0;
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
  }
  return 0;
}

TEST(Activation, ValuesOfAllTypes) {
  for (const DType dtype : kFloating) {
    for (const ops::ActivationName& row : ops::kActivations) {
      const Activation kind = row.value;
      for (const Shape& shape : std::vector<Shape>{{1}, {3, 17}, {2, 5, 65}, {20000}}) {
        Bench bench(2);
        const Tensor x = random_strided(bench.lane, dtype, shape, 1, 3);
        Values y = values_of(x);
        for (double& v : y) v = value(kind, v);
        expect_near(ops::activation(bench.lane, kind, x), y,
                    unit(dtype) * 1.01 + unit(accumulator_of(dtype)) * 4, ops::name_of(kind));
      }
    }
  }
}

TEST(Activation, BackwardIsTheDerivative) {
  for (const ops::ActivationName& row : ops::kActivations) {
    const Activation kind = row.value;
    Bench bench;
    Lane& lane = bench.lane;
    const Tensor x = random(lane, DType::kF64, {3, 34}, 1, 2), dy = random(lane, DType::kF64, {3, 34}, 2);
    expect_gradient(
        x, values_of(ops::activation_backward(lane, kind, dy, x)),
        [&] { return dot(ops::activation(lane, kind, x), dy); }, ops::name_of(kind));
    const Tensor gated_dy = random(lane, DType::kF64, {3, 17}, 3);
    expect_gradient(
        x, values_of(ops::gated_activation_backward(lane, kind, gated_dy, x)),
        [&] { return dot(ops::gated_activation(lane, kind, x), gated_dy); },
        std::string("gated ") + ops::name_of(kind));
  }
}

// The narrow types against the double twin on the same (rounded) inputs.
TEST(Activation, NarrowTypesFollowDouble) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const ops::ActivationName& row : ops::kActivations) {
      const Activation kind = row.value;
      Bench bench(2);
      Lane& lane = bench.lane;
      const double tolerance = unit(dtype) * 1.01 + unit(DType::kF32) * 8;
      const Tensor x = random_strided(lane, dtype, {7, 130}, 1, 2),
                   dy = random_strided(lane, dtype, {7, 130}, 2);
      const Tensor half = random(lane, dtype, {7, 65}, 3);
      const auto wide = [&](const Tensor& t) { return make(lane, DType::kF64, t.shape(), values_of(t)); };
      expect_near(ops::activation_backward(lane, kind, dy, x),
                  values_of(ops::activation_backward(lane, kind, wide(dy), wide(x))), tolerance, "dx");
      expect_near(ops::gated_activation(lane, kind, x), values_of(ops::gated_activation(lane, kind, wide(x))),
                  tolerance, "gated");
      expect_near(ops::gated_activation_backward(lane, kind, half, x),
                  values_of(ops::gated_activation_backward(lane, kind, wide(half), wide(x))), tolerance,
                  "gated dx");
    }
  }
}

TEST(Activation, LargeArgumentsSaturate) {
  Bench bench;
  for (const ops::ActivationName& row : ops::kActivations) {
    const Activation kind = row.value;
    const Values x = {-1e4, -100, -20, 0, 20, 100, 1e4};
    const Tensor t = make(bench.lane, DType::kF32, {7}, x);
    Values y(7);
    for (std::size_t i = 0; i < 7; ++i) y[i] = value(kind, x[i]);
    expect_near(ops::activation(bench.lane, kind, t), y, 1e-6, ops::name_of(kind));
    for (const double v : values_of(ops::activation_backward(bench.lane, kind, t, t)))
      EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(Activation, NotANumberStaysSo) {
  Bench bench;
  for (const ops::ActivationName& row : ops::kActivations) {
    const Activation kind = row.value;
    const Tensor t = make(bench.lane, DType::kF32, {2}, {std::nan(""), 1});
    EXPECT_TRUE(std::isnan(element(ops::activation(bench.lane, kind, t), 0))) << ops::name_of(kind);
  }
}

// The polynomials: a sweep over floats, error in units of the last place.
TEST(Math, FloatFunctionsAreWithinTwoUlp) {
  const auto worst = [](auto f, auto exact, float low, float high) {
    double most = 0;
    for (int i = 0; i <= 200000; ++i) {
      const float x = low + (high - low) * static_cast<float>(i) / 200000.0f;
      const double y = exact(static_cast<double>(x));
      const double ulp = y == 0 ? 0x1p-149 : std::max(std::ldexp(1.0, std::ilogb(y) - 23), 0x1p-149);
      most = std::max(most, std::fabs(static_cast<double>(f(x)) - y) / ulp);
    }
    return most;
  };
  EXPECT_LT(
      worst([](float x) { return ops::cpu::exp_of(x); }, [](double x) { return std::exp(x); }, -87.3f, 88.7f),
      2);
  EXPECT_LT(
      worst([](float x) { return ops::cpu::tanh_of(x); }, [](double x) { return std::tanh(x); }, -9.f, 9.f),
      2.5);
  EXPECT_LT(
      worst([](float x) { return ops::cpu::erf_of(x); }, [](double x) { return std::erf(x); }, -4.5f, 4.5f),
      2.5);
  EXPECT_EQ(ops::cpu::exp_of(-200.f), 0);
  EXPECT_EQ(ops::cpu::exp_of(0.f), 1);
  EXPECT_TRUE(std::isinf(ops::cpu::exp_of(89.f)));
  EXPECT_EQ(ops::cpu::exp_of(-std::numeric_limits<float>::infinity()), 0);
  for (const float nan : {std::nanf("")}) {
    EXPECT_TRUE(std::isnan(ops::cpu::exp_of(nan)));
    EXPECT_TRUE(std::isnan(ops::cpu::tanh_of(nan)));
    EXPECT_TRUE(std::isnan(ops::cpu::erf_of(nan)));
  }
}

TEST(Activation, WorkersAndMeta) {
  for (const ops::ActivationName& row : ops::kActivations) {
    const Activation kind = row.value;
    Bench one(1), two(2), three(3);
    const Tensor x = random(one.lane, DType::kBF16, {90, 400}, 1);
    const Tensor y = ops::gated_activation(one.lane, kind, x);
    const Tensor dx = ops::gated_activation_backward(one.lane, kind, y, x);
    for (Bench* bench : {&two, &three}) {
      EXPECT_TRUE(same_bits(ops::gated_activation(bench->lane, kind, x), y));
      EXPECT_TRUE(same_bits(ops::gated_activation_backward(bench->lane, kind, y, x), dx));
    }
    expect_same_plan([&](Lane& lane) {
      const Tensor in = lane.alloc(DType::kBF16, {9, 40}, "x");
      const Tensor half = ops::gated_activation(lane, kind, in);
      const Tensor a = ops::gated_activation_backward(lane, kind, half, in),
                   b = ops::activation(lane, kind, in);
      const Tensor c = ops::activation_backward(lane, kind, b, in);
    });
  }
  Bench bench;
  EXPECT_THROW(ops::gated_activation(bench.lane, Activation::kSilu, zeros(bench.lane, DType::kF32, {2, 3})),
               Error);
}

}  // namespace
}  // namespace weft
