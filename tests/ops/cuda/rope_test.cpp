#include "ops/rope.hpp"

#include "ops/cuda/views.hpp"

namespace weft {
namespace {

using namespace test;

class CudaRope : public OnGpuViews {
 protected:
  ops::RopeTable table_of(DType dtype, std::int64_t positions, std::int64_t rotary, bool interleaved) {
    const Shape shape = {positions, rotary / 2};
    ops::RopeTable t{zeros(cpu(), accumulator_of(dtype), shape), zeros(cpu(), accumulator_of(dtype), shape),
                     interleaved};
    for (std::int64_t i = 0; i < shape.elems(); ++i) {
      const std::int64_t pair = i % shape[1], position = i / shape[1];
      const double angle = static_cast<double>(position) *
                           std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary));
      set_element(t.cos, i, std::cos(angle));
      set_element(t.sin, i, std::sin(angle));
    }
    return {to_gpu(t.cos), to_gpu(t.sin), interleaved};
  }
};

struct Case {
  int head_dim, rotary, heads;
};

TEST_F(CudaRope, EveryTypeFormSizeAndLayout) {
  for (const DType dtype : kFloating) {
    for (const Case& c : {Case{2, 2, 3}, Case{6, 2, 1}, Case{16, 16, 4}, Case{20, 10, 5}, Case{64, 64, 12},
                          Case{64, 32, 9}, Case{80, 48, 3}, Case{128, 128, 2}, Case{256, 256, 33}}) {
      for (const bool interleaved : {false, true}) {
        for (const bool with_positions : {false, true}) {
          for (const Layout layout : kLayouts) {
            const std::int64_t s = 7, b = 3;
            const Tensor x = normals(dtype, {s, b, c.heads * c.head_dim}, 1, layout);
            const ops::RopeTable table = table_of(dtype, 20, c.rotary, interleaved);
            const ops::RopeTable reference{wide(table.cos), wide(table.sin), interleaved};
            Tensor positions;
            if (with_positions) {
              positions = zeros(cpu(), DType::kI32, {s, b});
              for (std::int64_t r = 0; r < s * b; ++r)
                set_element(positions, r, static_cast<double>((r * 11 + 3) % 20));
            }
            for (const bool inverse : {false, true}) {
              const Tensor expected = wide(x), again = copy_of(x);
              ops::rope_in_place(cpu(), expected, reference, positions, c.head_dim, inverse);
              ops::rope_in_place(gpu(), x, table, to_gpu(positions), c.head_dim, inverse);
              expect_close(x, expected, rounding(dtype), "rope");
              ops::rope_in_place(gpu(), again, table, to_gpu(positions), c.head_dim, inverse);
              // Compact and strided: the same products in the same order.
              EXPECT_TRUE(same_on_gpu(x, again)) << name_of(dtype) << c.head_dim;
            }
            expect_borders();
          }
        }
      }
    }
  }
}

// Where the CPU throws, the GPU cannot: what would have been turned is NaN.
TEST_F(CudaRope, PositionsOutsideTheTableAreSeen) {
  const ops::RopeTable table = table_of(DType::kF32, 4, 8, false);
  const Tensor x = to_gpu(constant(cpu(), DType::kF32, {3, 1, 16}, 1));
  ops::rope_in_place(gpu(), x, table, to_gpu(make(cpu(), DType::kI32, {3, 1}, {4, 3, -1})), 16, false);
  const Tensor y = to_cpu(x);
  EXPECT_TRUE(std::isnan(element(y, 0)));
  EXPECT_EQ(element(y, 8), 1);
  EXPECT_TRUE(std::isfinite(element(y, 16)));
  EXPECT_TRUE(std::isnan(element(y, 32)));
}

TEST_F(CudaRope, Empty) {
  const ops::RopeTable table = table_of(DType::kF32, 4, 8, false);
  ops::rope_in_place(gpu(), gpu().alloc(DType::kF32, {0, 2, 16}, "x"), table, {}, 16, false);
  ops::rope_in_place(gpu(), gpu().alloc(DType::kF32, {2, 0, 16}, "x"), table, {}, 16, false);
}

}  // namespace
}  // namespace weft
