// Stands in for gpu.cpp and profiler.cpp in builds without CUDA.
#include "core/gpu.hpp"
#include "core/profiler.hpp"

namespace weft {

bool built_with_cuda() {
  return false;
}

bool built_for(const Gpu&) {
  return false;
}

std::string built_architectures() {
  return "";
}

Gpus find_gpus() {
  return {.why_none = "this build has no CUDA backend (configure with -DWEFT_CUDA=ON; README, section GPU)"};
}

GpuMemory gpu_memory(int) {
  return {};
}

std::size_t gpu_bytes_in_use(int) {
  return 0;
}

void profiler_push(const char*) {}

void profiler_pop() {}

std::unique_ptr<Arena> gpu_arena(int, std::size_t, const TooLittleText&) {
  fail("{}", find_gpus().why_none);
}

}  // namespace weft
