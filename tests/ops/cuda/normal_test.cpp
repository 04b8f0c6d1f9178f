#include "ops/normal.hpp"

#include "ops/cuda/views.hpp"

namespace weft {
namespace {

using namespace test;

class CudaNormal : public OnGpuViews {};

TEST_F(CudaNormal, EveryTypeShapeAndPlace) {
  const RandomKey key = RandomKey{5}.with("init");
  for (const DType dtype : kFloating) {
    for (const Shape& shape : std::vector<Shape>{{1, 1}, {3, 7}, {130, 513}, {2, 1024}, {70000, 3}}) {
      for (const ops::ElementRange& range :
           {ops::ElementRange{0, 0, shape[1]}, ops::ElementRange{5, 3, shape[1] + 4},
            ops::ElementRange{1, 1, shape[1] + 1}}) {
        for (const Layout layout : kLayouts) {
          const Tensor x = view(dtype, shape, layout), expected = zeros(cpu(), dtype, shape);
          ops::fill_normal(gpu(), x, key, 0.02, range);
          ops::fill_normal(cpu(), expected, key, 0.02, range);
          expect_close(x, expected, rounding(dtype), "normal");
          expect_borders();
        }
      }
    }
  }
  const Tensor vector = gpu().alloc(DType::kF32, {1001}, "test");
  ops::fill_normal(gpu(), vector, key, 1, {.first_row = 17});
  const Tensor expected = zeros(cpu(), DType::kF32, {1001});
  ops::fill_normal(cpu(), expected, key, 1, {.first_row = 17});
  expect_close(vector, expected, rounding(DType::kF32), "vector");
}

}  // namespace
}  // namespace weft
