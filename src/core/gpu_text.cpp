// What is said of GPUs, apart from asking them.
#include <algorithm>
#include <string_view>

#include "core/check.hpp"
#include "core/gpu.hpp"

namespace weft {
namespace {

// Errors that a kernel makes after its launch has returned.
bool asynchronous(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "cudaErrorIllegalAddress",     "cudaErrorLaunchFailure", "cudaErrorMisalignedAddress",
      "cudaErrorIllegalInstruction", "cudaErrorAssert",        "cudaErrorInvalidAddressSpace",
      "cudaErrorHardwareStackError", "cudaErrorInvalidPc",     "cudaErrorLaunchTimeout",
      "cudaErrorTensorMemoryLeak",   "cudaErrorExternalDevice"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

std::string version_text(const std::array<int, 3>& version) {
  return fmt::format("{}.{}.{}", version[0], version[1], version[2]);
}

std::string problem_of(const GpuLibrary& library) {
  const auto& [built, found] = std::pair(library.built, library.found);
  if (found[0] == built[0] && found[1] >= built[1]) return "";
  return fmt::format(
      "{} here is {} {}, and this program was built with {}: it needs {}.{} or a later {}.x. Install that, "
      "or "
      "put its folder first on LD_LIBRARY_PATH",
      library.file, library.name, version_text(found), version_text(built), built[0], built[1], built[0]);
}

std::string cuda_error_text(const std::string& attempt, const std::string& name,
                            const std::string& description) {
  std::string text = fmt::format("CUDA: cannot {}: {} ({})", attempt, description, name);
  if (asynchronous(name)) {
    text += fmt::format(
        ". A kernel that ran before failed: CUDA reports it late, and \"{}\" is only the call that was told. "
        "Run again with CUDA_LAUNCH_BLOCKING=1 in the environment, and the call that is told is the one that "
        "failed",
        attempt);
  } else if (name == "cudaErrorMemoryAllocation") {
    text +=
        ". The memory beside the arena is full: nvidia-smi says who else uses the GPU, weft plan what a run "
        "needs";
  }
  return text;
}

}  // namespace weft
