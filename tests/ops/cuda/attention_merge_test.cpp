#include "ops/attention_merge.hpp"

#include "ops/cuda/gpu.hpp"

namespace weft {
namespace {

using namespace test;

class CudaMergeAttention : public OnGpu {};

TEST_F(CudaMergeAttention, EqualsTheTwin) {
  for (const DType dtype : kFloating) {
    for (const int d : {4, 33, 128}) {
      const std::int64_t s = 37, b = 3, heads = 5;
      const DType wide_type = accumulator_of(dtype);
      const ops::AttentionResult into{random(cpu(), wide_type, {s, b, heads * d}, 1),
                                      random(cpu(), wide_type, {b, heads, s}, 2, 3)},
          part{random(cpu(), dtype, {s, b, heads * d}, 3), random(cpu(), wide_type, {b, heads, s}, 4, 3)};
      set_element(into.lse, 7, -std::numeric_limits<double>::infinity());
      set_element(part.lse, 9, -std::numeric_limits<double>::infinity());
      set_element(into.lse, 11, -std::numeric_limits<double>::infinity());
      set_element(part.lse, 11, -std::numeric_limits<double>::infinity());
      const ops::AttentionResult on_gpu{to_gpu(into.out), to_gpu(into.lse)};
      ops::merge_attention(gpu(), on_gpu, {to_gpu(part.out), to_gpu(part.lse)});
      ops::merge_attention(cpu(), into, part);
      expect_close(on_gpu.out, into.out, rounding(wide_type), "out");
      expect_close(on_gpu.lse, into.lse, rounding(wide_type), "lse");
    }
  }
}

}  // namespace
}  // namespace weft
