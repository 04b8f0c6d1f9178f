// What is said when a GPU fails: each in words, and the process ends.
#include "ops/cuda/gpu.hpp"

namespace weft {
namespace {

using namespace test;

class CudaFailures : public OnGpu {};

TEST_F(CudaFailures, TooLittleMemoryNamesTheNumbers) {
  const GpuMemory before = gpu_memory(0);
  try {
    gpu_arena(0, before.total * 2);
    FAIL() << "twice the GPU's memory was given";
  } catch (const ConfigError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("GPU 0"), std::string::npos) << text;
    EXPECT_NE(text.find("are free"), std::string::npos) << text;
  }
  EXPECT_THROW(gpu_arena(0, before.total * 2, [](const GpuMemory&) { return std::string("no"); }),
               ConfigError);
  EXPECT_NO_THROW(gpu_arena(0, 1 << 20));  // no trace is left
}

// A kernel that writes where no memory is ends the context for good: in a process of its own.
TEST_F(CudaFailures, AKernelsErrorSaysThatItComesLate) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail_on_gpu = [&] {
    try {
      const Tensor here = gpu().alloc(DType::kF32, {1000}, "here");
      Arena nowhere(Device{DeviceKind::kCuda, 0}, here.raw() + (std::ptrdiff_t{1} << 38), 1 << 20);
      ops::fill(gpu(), nowhere.alloc(DType::kF32, {1000}, "nowhere"), 1);
      ops::to_host<float>(gpu(), here);
    } catch (const Error& e) {
      std::fputs(e.what(), stderr);
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(fail_on_gpu(), testing::ExitedWithCode(3), "cudaErrorIllegalAddress.*CUDA_LAUNCH_BLOCKING=1");
}

}  // namespace
}  // namespace weft
