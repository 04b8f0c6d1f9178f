// Tensors on the GPU in every layout that kernels tell apart, with borders that nothing may write.
#pragma once

#include <array>

#include "ops/cuda/gpu.hpp"

namespace weft::test {

enum class Layout {
  kCompact,
  kAligned,  // rows apart, each at a multiple of 16 elements where the number of columns is one
  kOdd,      // rows apart, aligned to one element
};
inline constexpr std::array kLayouts = {Layout::kCompact, Layout::kAligned, Layout::kOdd};

class OnGpuViews : public OnGpu {
 protected:
  void TearDown() override {
    borders_.clear();  // before the memory that they lie in
    OnGpu::TearDown();
  }
  // Memory filled with NaN (integers: −1), which its borders must still be when expect_borders() looks.
  Tensor view(DType dtype, Shape shape, Layout layout) {
    const std::int64_t columns = shape[-1];
    if (layout == Layout::kCompact) return gpu_like(meta(dtype, shape));
    const std::int64_t skip = layout == Layout::kAligned ? 16 : 3, more = layout == Layout::kAligned ? 32 : 5;
    shape.set(-1, columns + more);
    const Tensor whole = gpu_like(meta(dtype, shape));
    borders_.push_back(whole.slice_columns(0, skip));
    borders_.push_back(whole.slice_columns(skip + columns, more - skip));
    return whole.slice_columns(skip, columns);
  }
  // x in this layout.
  Tensor place(const Tensor& x, Layout layout) {
    Tensor y = view(x.dtype(), x.shape(), layout);
    ops::copy(gpu(), x, y);
    return y;
  }
  // Normal numbers in this layout.
  Tensor normals(DType dtype, const Shape& shape, std::uint64_t seed, Layout layout = Layout::kCompact,
                 double scale = 1) {
    return place(random(cpu(), dtype, shape, seed, scale), layout);
  }
  void expect_borders() {
    for (const Tensor& border : borders_) {
      const bool real = is_floating(border.dtype());
      const Tensor values = wide(border);
      for (std::int64_t i = 0; i < values.elems(); ++i) {
        const double v = element(values, i);
        ASSERT_TRUE(real ? std::isnan(v) : v == -1 || v == 255 || v == 65535) << "a border holds " << v;
      }
    }
    borders_.clear();
  }
  // NaN in the memory that the next operations take as scratch and for results.
  void poison(std::int64_t bytes = std::int64_t{64} << 20) {
    ops::fill(gpu(), gpu().alloc(DType::kU8, {bytes}, "poison"), 255);
  }
  bool same_on_gpu(const Tensor& a, const Tensor& b) { return same_bits(to_cpu(a), to_cpu(b)); }
  // Of a GPU tensor, for another run from the same start.
  Tensor copy_of(const Tensor& x) {
    Tensor y = gpu().alloc(x.dtype(), x.shape(), "copy");
    ops::copy(gpu(), x, y);
    return y;
  }

 private:
  // Only shape and dtype count.
  static Tensor meta(DType dtype, const Shape& shape) { return Tensor::borrow(nullptr, dtype, shape); }
  std::vector<Tensor> borders_;
};

}  // namespace weft::test
