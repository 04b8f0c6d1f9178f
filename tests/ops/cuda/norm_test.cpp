#include "ops/norm.hpp"

#include "ops/cuda/gpu.hpp"

namespace weft {
namespace {

using namespace test;

class CudaNorm : public OnGpu {
 protected:
  struct Inputs {
    Tensor x, dy, residual, weight, bias;
  };
  Inputs inputs(DType dtype, std::int64_t rows, std::int64_t h, bool strided) {
    const auto matrix = [&](std::uint64_t seed, double scale) {
      const Shape shape{rows, h};
      return to_gpu(strided ? random_strided(cpu(), dtype, shape, seed, scale)
                            : random(cpu(), dtype, shape, seed, scale));
    };
    return {matrix(1, 2), matrix(2, 1), matrix(3, 1), to_gpu(random(cpu(), dtype, {h}, 4)),
            to_gpu(random(cpu(), dtype, {h}, 5))};
  }
  Inputs widened(const Inputs& in) {
    return {wide(in.x), wide(in.dy), wide(in.residual), wide(in.weight), wide(in.bias)};
  }
  static ops::NormResult forward(Lane& lane, const Inputs& in, bool centred) {
    return centred ? ops::layer_norm(lane, in.x, in.weight, in.bias, 1e-5)
                   : ops::rms_norm(lane, in.x, in.weight, 1e-5);
  }
  static Tensor backward(Lane& lane, const Inputs& in, const ops::NormResult& r, bool centred, bool residual,
                         const ops::NormGradients& g) {
    const Tensor more = residual ? in.residual : Tensor{};
    return centred ? ops::layer_norm_backward(lane, in.dy, in.x, in.weight, r.mean, r.rstd, more, g)
                   : ops::rms_norm_backward(lane, in.dy, in.x, in.weight, r.rstd, more, g);
  }

  void check(DType dtype, std::int64_t rows, std::int64_t h, bool strided, bool centred) {
    const std::string what =
        fmt::format("{} {}x{} strided {} centred {}", name_of(dtype), rows, h, strided, centred);
    SCOPED_TRACE(what);
    const DType wide_type = accumulator_of(dtype);
    const double fine = rounding(wide_type);
    const Inputs in = inputs(dtype, rows, h, strided), in64 = widened(in);
    const ops::NormResult r = forward(gpu(), in, centred), r64 = forward(cpu(), in64, centred);
    expect_close(r.y, r64.y, rounding(dtype), "y");
    expect_close(r.rstd, r64.rstd, fine, "rstd");
    // A mean is a sum that cancels: judged by the size of what is summed.
    if (centred) {
      const Values got = values_of(to_cpu(r.mean)), expected = values_of(r64.mean);
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2 * fine) << "mean";
    } else {
      EXPECT_FALSE(r.mean.defined());
    }
    for (const bool residual : {false, true}) {
      for (const float beta : {0.0F, 1.0F}) {
        const Tensor old = random(cpu(), wide_type, {h}, 6), old64 = cpu().alloc(DType::kF64, {h}, "test");
        const auto gradients = [&] {
          return ops::NormGradients{beta == 0 ? gpu_like(old) : to_gpu(old),
                                    beta == 0 ? gpu_like(old) : to_gpu(old), beta};
        };
        ops::copy(cpu(), old, old64);
        const ops::NormGradients g64{make(cpu(), DType::kF64, {h}, values_of(old64)), old64, beta};
        const Tensor dx64 = backward(cpu(), in64, r64, centred, residual, g64);
        const ops::NormGradients g = gradients();
        const Tensor dx = backward(gpu(), in, r, centred, residual, g);
        expect_close(dx, dx64, std::max(rounding(dtype), 2 * fine), residual ? "dx with residual" : "dx");
        expect_close(g.weight, g64.weight, 2 * fine, "weight gradient");
        if (centred) expect_close(g.bias, g64.bias, 2 * fine, "bias gradient");
        const ops::NormGradients g2 = gradients();
        const Tensor again = backward(gpu(), in, r, centred, residual, g2);
        EXPECT_TRUE(same_bits(to_cpu(dx), to_cpu(again)));
        EXPECT_TRUE(same_bits(to_cpu(g.weight), to_cpu(g2.weight)));
        if (centred) {
          EXPECT_TRUE(same_bits(to_cpu(g.bias), to_cpu(g2.bias)));
        }
      }
    }
  }
};

// Lengths on both sides of every border between kernels, whole vectors and not.
TEST_F(CudaNorm, FollowsDouble) {
  for (const DType dtype : kFloating) {
    for (const bool centred : {false, true}) {
      for (const std::int64_t h : {8, 17, 100, 512, 520, 768, 776, 1024, 1032, 2048, 2056, 4096}) {
        check(dtype, 37, h, false, centred);
      }
      for (const std::int64_t h : {17, 64, 768}) check(dtype, 19, h, true, centred);
      for (const std::int64_t h : {4104, 8192, 8200, 12288, 16384, 16392}) check(dtype, 9, h, false, centred);
    }
  }
}

// More rows than one block takes: every chunk has several rows for each of its groups.
TEST_F(CudaNorm, ManyRows) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const bool centred : {false, true}) {
      check(dtype, 1, 768, false, centred);
      check(dtype, 8 * 264 + 5, 264, false, centred);
      check(dtype, 5003, 64, false, centred);
      check(dtype, 3001, 768, false, centred);
      check(dtype, 1601, 1280, false, centred);
      check(dtype, 801, 4096, false, centred);
      check(dtype, 5003, 20, true, centred);
    }
  }
}

// Rows wider apart than they are long, but still whole vectors: the strided vector path.
TEST_F(CudaNorm, AlignedViews) {
  for (const bool centred : {false, true}) {
    const std::int64_t rows = 50, h = 768;
    const auto view = [&](std::uint64_t seed) {
      return random(cpu(), DType::kBF16, {rows, h + 16}, seed).slice_columns(8, h);
    };
    Inputs in{to_gpu(view(1)), to_gpu(view(2)), to_gpu(view(3)), to_gpu(random(cpu(), DType::kBF16, {h}, 4)),
              to_gpu(random(cpu(), DType::kBF16, {h}, 5))};
    ASSERT_EQ(in.x.ld(), h + 16);
    const Inputs in64 = widened(in);
    const ops::NormResult r = forward(gpu(), in, centred), r64 = forward(cpu(), in64, centred);
    expect_close(r.y, r64.y, rounding(DType::kBF16), "y");
    const Tensor start = zeros(cpu(), DType::kF32, {h}), start64 = zeros(cpu(), DType::kF64, {h});
    const ops::NormGradients g{gpu_like(start), gpu_like(start), 0};
    const ops::NormGradients g64{start64, zeros(cpu(), DType::kF64, {h}), 0};
    expect_close(backward(gpu(), in, r, centred, true, g), backward(cpu(), in64, r64, centred, true, g64),
                 rounding(DType::kBF16), "dx");
    expect_close(g.weight, g64.weight, 2 * rounding(DType::kF32), "weight gradient");
  }
}

TEST_F(CudaNorm, LargeMeanKeepsItsDigits) {
  Tensor x = random(cpu(), DType::kF32, {5, 1024}, 1);
  for (std::int64_t i = 0; i < x.elems(); ++i) set_element(x, i, 1000 + element(x, i));
  const Inputs in{to_gpu(x),
                  {},
                  {},
                  to_gpu(random(cpu(), DType::kF32, {1024}, 2)),
                  to_gpu(random(cpu(), DType::kF32, {1024}, 3))};
  expect_close(forward(gpu(), in, true).y, forward(cpu(), widened(in), true).y, 1e-4, "y");
}

TEST_F(CudaNorm, NanStaysInItsRow) {
  Tensor x = random(cpu(), DType::kBF16, {9, 768}, 1);
  set_element(x, 4 * 768 + 700, std::nan(""));
  const Inputs in{to_gpu(x),
                  {},
                  {},
                  to_gpu(random(cpu(), DType::kBF16, {768}, 2)),
                  to_gpu(random(cpu(), DType::kBF16, {768}, 3))};
  for (const bool centred : {false, true}) {
    const Tensor y = to_cpu(forward(gpu(), in, centred).y);
    for (std::int64_t i = 0; i < y.elems(); ++i) ASSERT_EQ(std::isnan(element(y, i)), i / 768 == 4) << i;
  }
}

TEST_F(CudaNorm, NoRows) {
  const Inputs in{gpu().alloc(DType::kBF16, {0, 64}, "test"),
                  gpu().alloc(DType::kBF16, {0, 64}, "test"),
                  {},
                  to_gpu(random(cpu(), DType::kBF16, {64}, 2)),
                  to_gpu(random(cpu(), DType::kBF16, {64}, 3))};
  const ops::NormResult r = forward(gpu(), in, true);
  const Tensor start = zeros(cpu(), DType::kF32, {64});
  const ops::NormGradients g{gpu_like(start), gpu_like(start), 0};
  backward(gpu(), in, r, true, false, g);
  for (const double v : values_of(to_cpu(g.weight))) EXPECT_EQ(v, 0);
  for (const double v : values_of(to_cpu(g.bias))) EXPECT_EQ(v, 0);
}

}  // namespace
}  // namespace weft
