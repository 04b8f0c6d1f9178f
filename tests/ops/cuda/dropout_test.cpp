#include "ops/dropout.hpp"

#include "ops/cuda/views.hpp"

namespace weft {
namespace {

using namespace test;

class CudaDropout : public OnGpuViews {
 protected:
  ops::DropoutSite site_of(double p, std::int64_t batch, std::int64_t first_token = 7,
                           std::int64_t first_channel = 0) {
    ops::DropoutSite site;
    site.p = p;
    site.key = RandomKey{9}.with("hidden");
    site.tokens.first = first_token;
    site.first_channel = first_channel;
    site.sample_ids = zeros(cpu(), DType::kI64, {batch});
    for (std::int64_t b = 0; b < batch; ++b)
      set_element(site.sample_ids, b, static_cast<double>(5000000000 + b * b));
    return site;
  }
  ops::DropoutSite on_gpu(ops::DropoutSite site) {
    site.sample_ids = to_gpu(site.sample_ids);
    return site;
  }
};

TEST_F(CudaDropout, EqualsTheCpuInEveryTypeSizeAndLayout) {
  for (const DType dtype : kFloating) {
    for (const Shape& shape : std::vector<Shape>{{1, 1, 1},
                                                 {3, 2, 3},
                                                 {3, 2, 17},
                                                 {5, 3, 64},
                                                 {2, 300, 8},
                                                 {2, 3, 129},
                                                 {9, 2, 768},
                                                 {2, 1, 1025}}) {
      const std::int64_t h = shape[2];
      for (const Layout layout : kLayouts) {
        const Tensor x = normals(dtype, shape, 1, layout), residual = normals(dtype, shape, 2, layout),
                     dout = normals(dtype, shape, 3, layout), bias = normals(dtype, {h}, 4);
        const Tensor host_x = to_cpu(x), host_bias = to_cpu(bias), host_dout = to_cpu(dout);
        for (const double p : {0.0, 0.1, 0.5, 0.9}) {
          for (const std::int64_t first_channel : {0, 8, 6, 4}) {
            const ops::DropoutSite site = site_of(p, shape[1], 7, first_channel);
            poison(1 << 20);
            // One product each: the same bits, so also the same zeros.
            const Tensor bare = ops::bias_dropout_add(gpu(), x, {}, {}, on_gpu(site));
            ASSERT_TRUE(same_bits(to_cpu(bare), ops::bias_dropout_add(cpu(), host_x, {}, {}, site)))
                << name_of(dtype) << to_string(shape) << p << " " << first_channel;
            ASSERT_TRUE(same_bits(to_cpu(ops::bias_dropout_add(gpu(), x, bias, {}, on_gpu(site))),
                                  ops::bias_dropout_add(cpu(), host_x, host_bias, {}, site)));
            ASSERT_TRUE(same_bits(to_cpu(ops::dropout_backward(gpu(), dout, on_gpu(site))),
                                  ops::dropout_backward(cpu(), host_dout, site)));
            const Tensor all = ops::bias_dropout_add(gpu(), x, bias, residual, on_gpu(site));
            expect_close(all, ops::bias_dropout_add(cpu(), wide(x), wide(bias), wide(residual), site),
                         rounding(dtype), "all");
            expect_close(ops::bias_dropout_add(gpu(), x, {}, residual, on_gpu(site)),
                         ops::bias_dropout_add(cpu(), wide(x), {}, wide(residual), site), rounding(dtype),
                         "without bias");
            EXPECT_TRUE(same_on_gpu(ops::bias_dropout_add(gpu(), x, bias, residual, on_gpu(site)), all));
          }
        }
        expect_borders();
      }
    }
  }
}

// The documented function, of far tokens and samples.
TEST_F(CudaDropout, IsTheDocumentedFunction) {
  const std::int64_t first_token = (std::int64_t{1} << 32) - 5, first_channel = 40;
  const ops::DropoutSite site = site_of(0.3, 200, first_token - 3, first_channel);
  const Tensor x = to_gpu(constant(cpu(), DType::kF32, {5, 200, 24}, 1));
  const Tensor y = to_cpu(ops::bias_dropout_add(gpu(), x, {}, {}, on_gpu(site)));
  double kept = 0;
  for (std::int64_t i = 0; i < y.elems(); ++i) {
    const auto c = static_cast<std::uint64_t>(i % 24 + first_channel);
    const auto t = static_cast<std::uint64_t>(i / 24 / 200 + first_token - 3);
    const auto sample = static_cast<std::uint64_t>(element(site.sample_ids, i / 24 % 200));
    const bool keep = static_cast<double>(uniform(philox(site.key, c / 4 | t << 32, sample)[c % 4])) >= 0.3;
    ASSERT_EQ(element(y, i) != 0, keep) << i;
    kept += keep;
  }
  EXPECT_NEAR(kept / static_cast<double>(y.elems()), 0.7, 0.012);
}

TEST_F(CudaDropout, Empty) {
  const Tensor x = gpu().alloc(DType::kBF16, {0, 2, 8}, "x");
  EXPECT_EQ(ops::bias_dropout_add(gpu(), x, {}, x, site_of(0.5, 2)).elems(), 0);
  EXPECT_EQ(ops::dropout_backward(gpu(), x, site_of(0.5, 2)).elems(), 0);
}

}  // namespace
}  // namespace weft
