#include <gtest/gtest.h>

#include "core/gpu.hpp"

namespace weft {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(GpuText, AnErrorOfACallSaysWhatAndWhy) {
  EXPECT_EQ(cuda_error_text("make a stream", "cudaErrorInvalidValue", "invalid argument"),
            "CUDA: cannot make a stream: invalid argument (cudaErrorInvalidValue)");
}

TEST(GpuText, AnErrorOfAKernelSaysThatItComesLate) {
  for (const char* name : {"cudaErrorIllegalAddress", "cudaErrorLaunchFailure", "cudaErrorAssert",
                           "cudaErrorMisalignedAddress", "cudaErrorLaunchTimeout"}) {
    const std::string text = cuda_error_text("wait for a copy", name, "an illegal memory access");
    EXPECT_TRUE(has(text, "cannot wait for a copy")) << text;
    EXPECT_TRUE(has(text, name)) << text;
    EXPECT_TRUE(has(text, "reports it late")) << text;
    EXPECT_TRUE(has(text, "CUDA_LAUNCH_BLOCKING=1")) << text;
  }
}

TEST(GpuText, FullMemorySaysWhereToLook) {
  const std::string text =
      cuda_error_text("take pinned memory", "cudaErrorMemoryAllocation", "out of memory");
  EXPECT_TRUE(has(text, "nvidia-smi")) << text;
  EXPECT_FALSE(has(text, "LAUNCH_BLOCKING")) << text;
}

TEST(GpuText, LibrariesAreHeldAgainstWhatWasCompiledIn) {
  const auto problem = [](std::array<int, 3> built, std::array<int, 3> found) {
    return problem_of(GpuLibrary{"cuDNN", "libcudnn.so.9", built, found});
  };
  EXPECT_EQ(problem({9, 19, 0}, {9, 19, 0}), "");
  EXPECT_EQ(problem({9, 19, 1}, {9, 19, 0}), "");  // a patch
  EXPECT_EQ(problem({9, 19, 0}, {9, 20, 0}), "");
  for (const std::array<int, 3> found : {std::array{9, 10, 2}, std::array{8, 20, 0}, std::array{10, 0, 0}}) {
    const std::string text = problem({9, 19, 0}, found);
    EXPECT_TRUE(has(text, version_text(found))) << text;
    EXPECT_TRUE(has(text, "built with 9.19.0")) << text;
    EXPECT_TRUE(has(text, "needs 9.19 or a later 9.x")) << text;
    EXPECT_TRUE(has(text, "LD_LIBRARY_PATH")) << text;
  }
}

}  // namespace
}  // namespace weft
