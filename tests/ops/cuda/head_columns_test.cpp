#include "ops/head_columns.hpp"

#include "ops/cuda/gpu.hpp"

namespace weft {
namespace {

using namespace test;

class CudaHeadColumns : public OnGpu {};

TEST_F(CudaHeadColumns, EqualTheTwins) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t heads : {1, 3, 16}) {
      const std::int64_t head_dim = 24, first = 4, d = 8;
      const Tensor x = random(cpu(), dtype, {37, 3, d}, 1),
                   y = random(cpu(), dtype, {37, 3, heads * head_dim}, 2);
      const Tensor on_gpu = to_gpu(y), sum = to_gpu(x);
      ops::copy_to_heads(gpu(), to_gpu(x), on_gpu, head_dim, first);
      ops::copy_to_heads(cpu(), x, y, head_dim, first);
      expect_close(on_gpu, y, 0, "copy");
      ops::sum_of_heads(gpu(), to_gpu(y), head_dim, first, sum);
      ops::sum_of_heads(cpu(), y, head_dim, first, x);
      expect_close(sum, x, rounding(dtype), "sum");
    }
  }
}

}  // namespace
}  // namespace weft
