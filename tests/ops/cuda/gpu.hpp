// Tests of CUDA twins: the same operation on a CPU lane in double (or float) and on the GPU, from the same
// random inputs. Where there is no GPU they are skipped.
#pragma once

#include "core/gpu.hpp"
#include "ops/device_tools.hpp"
#include "ops/elementwise.hpp"
#include "ops/support.hpp"

namespace weft::test {

class OnGpu : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = std::size_t{3} << 30;

  void SetUp() override {
    const Gpus gpus = find_gpus();
    if (gpus.list.empty()) GTEST_SKIP() << gpus.why_none;
    arena_ = gpu_arena(0, kBytes);
    device_ = ops::open_device(arena_->device());
    lane_ = std::make_unique<Lane>(Lane{*arena_, cpu_.workers, device_.compute, device_.tools.get()});
  }
  void TearDown() override {
    lane_.reset();
    device_.tools.reset();
    arena_.reset();
  }

  Lane& cpu() { return cpu_.lane; }
  Lane& gpu() { return *lane_; }

  // A copy on the GPU: dtype, shape and (for a view of wider rows) stride of x. Around a strided view lie
  // NaNs.
  Tensor to_gpu(const Tensor& x) { return to_gpu(x, x.dtype()); }
  // Rounded to another type on the way.
  Tensor to_gpu(const Tensor& x, DType dtype) {
    if (!x.defined()) return {};
    Tensor y = gpu_like(x, dtype);
    ops::copy(gpu(), x, y);
    return y;
  }
  // Memory on the GPU of the shape and stride of x, filled with NaN (floating) or −1: what an operation does
  // not write shows.
  Tensor gpu_like(const Tensor& x) { return gpu_like(x, x.dtype()); }
  Tensor gpu_like(const Tensor& x, DType dtype) {
    Shape wide = x.shape();
    const bool strided = !x.contiguous();
    if (strided) wide.set(-1, x.ld());
    Tensor y = gpu().alloc(dtype, wide, "test");
    ops::fill(gpu(), y, is_floating(dtype) ? std::numeric_limits<double>::quiet_NaN() : -1.0);
    return strided ? y.slice_columns((x.ld() - x.columns()) / 2, x.columns()) : y;
  }
  Tensor to_cpu(const Tensor& x) {
    if (!x.defined()) return {};
    Tensor y = cpu().alloc(x.dtype(), x.shape(), "test");
    ops::copy(gpu(), x, y);
    return y;
  }
  // What the GPU's operation got, exactly, in double (or another wide type) on the CPU: references are
  // computed from it.
  Tensor wide(const Tensor& on_gpu, DType dtype = DType::kF64) {
    if (!on_gpu.defined()) return {};
    Tensor y = cpu().alloc(dtype, on_gpu.shape(), "test");
    ops::copy(cpu(), to_cpu(on_gpu), y);
    return y;
  }
  // ‖gpu − reference‖ ≤ relative · ‖reference‖, and no element further off than `worst` (default: 20 ·
  // relative) times the largest of the reference. NaN fails.
  void expect_close(const Tensor& on_gpu, const Tensor& reference, double relative, const char* what,
                    double worst = 0) {
    const Tensor got = to_cpu(on_gpu);
    ASSERT_EQ(got.shape(), reference.shape()) << what;
    double difference = 0, norm = 0, largest = 0, furthest = 0;
    for (std::int64_t i = 0; i < got.elems(); ++i) {
      const double a = element(got, i), b = element(reference, i);
      ASSERT_TRUE(std::isfinite(a) || a == b) << what << "[" << i << "] is " << a << ", expected " << b;
      if (!std::isfinite(a)) continue;
      difference += (a - b) * (a - b);
      norm += b * b;
      largest = std::max(largest, std::fabs(b));
      furthest = std::max(furthest, std::fabs(a - b));
    }
    EXPECT_LE(std::sqrt(difference), relative * std::sqrt(norm)) << what;
    EXPECT_LE(furthest, (worst > 0 ? worst : 20 * relative) * largest) << what;
  }
  // A bound on ‖gpu − reference‖ / ‖reference‖ of an operation that rounds its result once.
  static double rounding(DType dtype) {
    switch (dtype) {
      case DType::kBF16:
        return 4e-3;  // one element may be off by 2⁻⁸
      case DType::kF16:
        return 5e-4;
      case DType::kF32:
        return 1e-6;
      default:
        return 1e-13;
    }
  }

 private:
  Bench cpu_{2, std::size_t{8} << 30};
  std::unique_ptr<Arena> arena_;
  ops::OpenedDevice device_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace weft::test
