#include "ops/activation.hpp"

#include "ops/cuda/views.hpp"
#include "ops/gemm.hpp"

namespace weft {
namespace {

using namespace test;

class CudaActivation : public OnGpuViews {};

TEST_F(CudaActivation, EveryKindTypeSizeAndLayout) {
  for (const ops::ActivationName& row : ops::kActivations) {
    const ops::Activation kind = row.value;
    for (const DType dtype : kFloating) {
      for (const std::int64_t columns : {1, 3, 17, 64, 129, 768, 1025}) {
        for (const Layout layout : kLayouts) {
          const Shape shape = {5, 2, columns}, doubled = {5, 2, 2 * columns};
          const Tensor x = normals(dtype, shape, 1, layout, 2), dy = normals(dtype, shape, 2, layout);
          const Tensor pair = normals(dtype, doubled, 3, layout, 2);
          const Tensor wx = wide(x), wdy = wide(dy), wpair = wide(pair);
          const double bound = rounding(dtype);
          const char* name = ops::name_of(kind);
          poison(1 << 20);
          const Tensor y = ops::activation(gpu(), kind, x);
          expect_close(y, ops::activation(cpu(), kind, wx), bound, name);
          expect_close(ops::activation_backward(gpu(), kind, dy, x),
                       ops::activation_backward(cpu(), kind, wdy, wx), bound, name);
          expect_close(ops::gated_activation(gpu(), kind, pair), ops::gated_activation(cpu(), kind, wpair),
                       bound, name);
          const Tensor dx = ops::gated_activation_backward(gpu(), kind, dy, pair);
          expect_close(dx, ops::gated_activation_backward(cpu(), kind, wdy, wpair), bound, name);
          EXPECT_TRUE(same_on_gpu(ops::activation(gpu(), kind, x), y));
          // Both passes at once: their bits.
          const ops::ActivationAgain again = ops::activation_again(gpu(), kind, dy, x);
          EXPECT_TRUE(same_on_gpu(again.dx, ops::activation_backward(gpu(), kind, dy, x))) << name;
          EXPECT_TRUE(same_on_gpu(again.y, y)) << name;
          const ops::ActivationAgain gated = ops::gated_activation_again(gpu(), kind, dy, pair);
          EXPECT_TRUE(same_on_gpu(gated.dx, dx)) << name;
          EXPECT_TRUE(same_on_gpu(gated.y, ops::gated_activation(gpu(), kind, pair))) << name;
          // And with the sums of what was written.
          for (const float beta : {0.0f, 1.0f}) {
            const DType wide_type = accumulator_of(dtype);
            const Tensor db = to_gpu(random(cpu(), wide_type, {columns}, 9)), before = wide(db);
            const ops::ActivationAgain summed = ops::activation_again(gpu(), kind, dy, x, db, beta);
            EXPECT_TRUE(same_on_gpu(summed.dx, again.dx)) << name;
            EXPECT_TRUE(same_on_gpu(summed.y, y)) << name;
            ops::bias_gradient(cpu(), wide(again.dx), before, beta);
            expect_close(db, before, dtype == DType::kF64 ? 1e-13 : 2e-6, "db", 1e-4);
          }
          EXPECT_TRUE(same_on_gpu(ops::gated_activation_backward(gpu(), kind, dy, pair), dx));
          expect_borders();
        }
      }
    }
  }
}

// One large tensor: many blocks, and a rest behind the last whole vector.
TEST_F(CudaActivation, Large) {
  for (const Shape& shape : {Shape{1000003}, Shape{2049, 1, 513}}) {
    const Tensor x = normals(DType::kBF16, shape, 1);
    expect_close(ops::activation(gpu(), ops::Activation::kSilu, x),
                 ops::activation(cpu(), ops::Activation::kSilu, wide(x)), rounding(DType::kBF16), "silu");
  }
}

// Each number by itself: large ones of either sign neither overflow on the way nor lose their zeros.
TEST_F(CudaActivation, TailsAndNaN) {
  Values v = {0,  -0.0, 1e-3, -1e-3, 0.5, -0.5, 3,   -3,  5,    -5,  9,
              -9, 20,   -20,  50,    -50, 89,   -89, 104, -104, 200, -200};
  for (const ops::ActivationName& row : ops::kActivations) {
    const ops::Activation kind = row.value;
    for (const DType dtype : kFloating) {
      const Tensor x = make(cpu(), dtype, {static_cast<std::int64_t>(v.size())}, v);
      const Tensor ones = constant(cpu(), dtype, x.shape(), 1), on = to_gpu(x), dy = to_gpu(ones);
      const auto check = [&](const Tensor& on_gpu, const Tensor& expected, const char* what) {
        const Tensor got = to_cpu(on_gpu);
        for (std::int64_t i = 0; i < got.elems(); ++i) {
          const double b = element(expected, i);
          // The error function near −1 leaves 1 + erf with an absolute error.
          const double tolerance = 2 * unit(dtype) * std::fabs(b) +
                                   (dtype == DType::kF64 ? 1e-14 : 1e-6) * std::fabs(element(x, i));
          EXPECT_NEAR(element(got, i), b, tolerance + 1e-7)
              << ops::name_of(kind) << what << name_of(dtype) << " at " << element(x, i);
        }
      };
      check(ops::activation(gpu(), kind, on), ops::activation(cpu(), kind, wide(on)), " ");
      check(ops::activation_backward(gpu(), kind, dy, on),
            ops::activation_backward(cpu(), kind, wide(dy), wide(on)), "' ");
      const Tensor nan = to_gpu(constant(cpu(), dtype, {3}, std::nan("")));
      EXPECT_TRUE(std::isnan(element(to_cpu(ops::activation(gpu(), kind, nan)), 1))) << ops::name_of(kind);
    }
  }
}

TEST_F(CudaActivation, Empty) {
  for (const Shape& shape : {Shape{0, 1, 8}, Shape{3, 1, 0}}) {
    const Tensor x = gpu().alloc(DType::kF32, shape, "x");
    EXPECT_EQ(ops::activation(gpu(), ops::Activation::kSilu, x).elems(), 0);
    EXPECT_EQ(ops::activation_backward(gpu(), ops::Activation::kSilu, x, x).elems(), 0);
    const Tensor y = ops::gated_activation(gpu(), ops::Activation::kSilu, x);
    EXPECT_EQ(ops::gated_activation_backward(gpu(), ops::Activation::kSilu, y, x).elems(), 0);
  }
}

// Many rows of many columns: several tiles and ranges, of odd sizes.
TEST_F(CudaActivation, SumsOfMany) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Shape& shape : {Shape{3001, 1, 768}, Shape{517, 3, 1000}, Shape{70, 1, 4099}}) {
      const Tensor x = normals(dtype, shape, 1), dy = normals(dtype, shape, 2);
      const Tensor db = to_gpu(constant(cpu(), DType::kF32, {shape[2]}, 0)), expected = wide(db);
      const ops::ActivationAgain again =
          ops::activation_again(gpu(), ops::Activation::kGeluTanh, dy, x, db, 0);
      ops::bias_gradient(cpu(), wide(again.dx), expected, 0);
      expect_close(db, expected, 2e-6, "db", 1e-4);
    }
  }
}

}  // namespace
}  // namespace weft
