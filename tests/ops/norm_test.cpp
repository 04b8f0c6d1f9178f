#include "ops/norm.hpp"

#include "ops/support.hpp"

namespace weft {
namespace {

using namespace test;

struct Case {
  std::int64_t rows, h;
};
const std::vector<Case> kCases = {{1, 1}, {3, 17}, {17, 3}, {65, 64}, {130, 100}, {1, 1000}};

struct Inputs {
  Inputs(Lane& lane, DType dtype, const Case& c)
      : x(random_strided(lane, dtype, {c.rows, c.h}, 1, 2)),
        dy(random_strided(lane, dtype, {c.rows, c.h}, 2)),
        residual(random(lane, dtype, {c.rows, c.h}, 3)),
        weight(random(lane, dtype, {c.h}, 4)),
        bias(random(lane, dtype, {c.h}, 5)) {}
  Tensor x, dy, residual, weight, bias;
};

// The same op in double: its own derivative is checked by differences below, its value against plain formulas
// here.
Values plain_norm(const Inputs& in, bool centred, double eps) {
  const std::int64_t h = in.x.columns();
  Values y(static_cast<std::size_t>(in.x.elems()));
  for (std::int64_t r = 0; r < in.x.rows(); ++r) {
    double mean = 0, square = 0;
    for (std::int64_t j = 0; j < h && centred; ++j) mean += element(in.x, r * h + j) / static_cast<double>(h);
    for (std::int64_t j = 0; j < h; ++j)
      square += std::pow(element(in.x, r * h + j) - mean, 2) / static_cast<double>(h);
    for (std::int64_t j = 0; j < h; ++j) {
      const double normal = (element(in.x, r * h + j) - mean) / std::sqrt(square + eps);
      y[static_cast<std::size_t>(r * h + j)] =
          normal * element(in.weight, j) + (centred ? element(in.bias, j) : 0);
    }
  }
  return y;
}

ops::NormResult forward(Lane& lane, const Inputs& in, bool centred) {
  return centred ? ops::layer_norm(lane, in.x, in.weight, in.bias, 1e-5)
                 : ops::rms_norm(lane, in.x, in.weight, 1e-5);
}

Tensor backward(Lane& lane, const Inputs& in, const ops::NormResult& r, bool centred, bool with_residual,
                const ops::NormGradients& g) {
  const Tensor residual = with_residual ? in.residual : Tensor{};
  return centred ? ops::layer_norm_backward(lane, in.dy, in.x, in.weight, r.mean, r.rstd, residual, g)
                 : ops::rms_norm_backward(lane, in.dy, in.x, in.weight, r.rstd, residual, g);
}

ops::NormGradients gradients(Lane& lane, DType dtype, std::int64_t h, double start, float beta) {
  const DType wide = accumulator_of(dtype);
  return {constant(lane, wide, {h}, start), constant(lane, wide, {h}, start), beta};
}

TEST(Norm, Values) {
  for (const DType dtype : kFloating) {
    for (const Case& c : kCases) {
      for (const bool centred : {false, true}) {
        Bench bench(2);
        const Inputs in(bench.lane, dtype, c);
        const ops::NormResult r = forward(bench.lane, in, centred);
        EXPECT_EQ(r.mean.defined(), centred);
        if (centred && c.h == 1) continue;  // x − mean is 0 but for rounding
        expect_near(r.y, plain_norm(in, centred, 1e-5), unit(dtype) * 1.01 + unit(accumulator_of(dtype)) * 8,
                    fmt::format("{} {}x{}", name_of(dtype), c.rows, c.h));
      }
    }
  }
}

TEST(Norm, BackwardIsTheDerivative) {
  for (const bool centred : {false, true}) {
    for (const Case& c : {Case{3, 17}, Case{40, 5}}) {
      Bench bench;
      Lane& lane = bench.lane;
      const Inputs in(lane, DType::kF64, c);
      const ops::NormGradients g = gradients(lane, DType::kF64, c.h, std::nan(""), 0);
      const Tensor dx = backward(lane, in, forward(lane, in, centred), centred, true, g);
      // The residual's gradient reaches x past the norm: d/dx of Σ dy y + Σ residual x.
      const auto loss = [&] { return dot(forward(lane, in, centred).y, in.dy) + dot(in.x, in.residual); };
      expect_gradient(in.x, values_of(dx), loss, "dx", 1, 1e-6);
      expect_gradient(in.weight, values_of(g.weight), loss, "dweight", 1, 1e-6);
      if (centred) expect_gradient(in.bias, values_of(g.bias), loss, "dbias", 1, 1e-6);
    }
  }
}

TEST(Norm, NarrowTypesFollowDoubleAndAccumulate) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Case& c : kCases) {
      for (const bool centred : {false, true}) {
        if (centred && c.h == 1) continue;
        for (const bool with_residual : {false, true}) {
          Bench bench(2);
          Lane& lane = bench.lane;
          const Inputs in(lane, dtype, c);
          Inputs wide = in;
          for (Tensor* t : {&wide.x, &wide.dy, &wide.residual, &wide.weight, &wide.bias}) {
            *t = make(lane, DType::kF64, t->shape(), values_of(*t));
          }
          const ops::NormGradients g = gradients(lane, dtype, c.h, 0.25, 1);
          const ops::NormGradients g64 = gradients(lane, DType::kF64, c.h, 0.25, 1);
          const Tensor dx = backward(lane, in, forward(lane, in, centred), centred, with_residual, g);
          const Tensor dx64 = backward(lane, wide, forward(lane, wide, centred), centred, with_residual, g64);
          const std::string what = fmt::format("{} {}x{}", name_of(dtype), c.rows, c.h);
          expect_near(dx, values_of(dx64), unit(dtype) * 1.01 + unit(DType::kF32) * 30, what + " dx", 1);
          expect_near(g.weight, values_of(g64.weight), unit(DType::kF32) * 40, what + " dweight", 1);
          if (centred) expect_near(g.bias, values_of(g64.bias), unit(DType::kF32) * 40, what + " dbias", 1);
        }
      }
    }
  }
}

TEST(Norm, LargeMeanKeepsItsDigits) {
  Bench bench;
  Inputs in(bench.lane, DType::kF32, {4, 256});
  for (std::int64_t i = 0; i < in.x.elems(); ++i) set_element(in.x, i, 1000 + element(in.x, i));
  expect_near(forward(bench.lane, in, true).y, plain_norm(in, true, 1e-5), 1e-4, "y");
}

TEST(Norm, BitsDoNotDependOnWorkers) {
  for (const bool centred : {false, true}) {
    Bench one(1);
    const Inputs in(one.lane, DType::kBF16, {333, 200});
    const ops::NormResult r = forward(one.lane, in, centred);
    const ops::NormGradients g = gradients(one.lane, DType::kBF16, 200, 1, 1);
    const Tensor dx = backward(one.lane, in, r, centred, true, g);
    for (const int threads : {2, 3}) {
      Bench many(threads);
      const ops::NormResult again = forward(many.lane, in, centred);
      EXPECT_TRUE(same_bits(again.y, r.y));
      EXPECT_TRUE(same_bits(again.rstd, r.rstd));
      const ops::NormGradients other = gradients(many.lane, DType::kBF16, 200, 1, 1);
      EXPECT_TRUE(same_bits(backward(many.lane, in, again, centred, true, other), dx));
      EXPECT_TRUE(same_bits(other.weight, g.weight));
      EXPECT_TRUE(same_bits(other.bias, g.bias));
    }
  }
}

TEST(Norm, MetaLanePlansTheSame) {
  for (const bool centred : {false, true}) {
    expect_same_plan([&](Lane& lane) {
      const Tensor x = lane.alloc(DType::kBF16, {100, 2, 48}, "x"), w = lane.alloc(DType::kBF16, {48}, "w");
      const ops::NormGradients g{lane.alloc(DType::kF32, {48}, "dw"), lane.alloc(DType::kF32, {48}, "db"), 0};
      if (centred) {
        const ops::NormResult r = ops::layer_norm(lane, x, w, w, 1e-5);
        const Tensor dx = ops::layer_norm_backward(lane, r.y, x, w, r.mean, r.rstd, x, g);
      } else {
        const ops::NormResult r = ops::rms_norm(lane, x, w, 1e-5);
        const Tensor dx = ops::rms_norm_backward(lane, r.y, x, w, r.rstd, {}, g);
      }
    });
  }
}

}  // namespace
}  // namespace weft
