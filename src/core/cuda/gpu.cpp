#include "core/gpu.hpp"

#include <cstdlib>
#include <sstream>

#include "core/cuda/check.hpp"

namespace weft {
namespace {

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

bool built_with_cuda() {
  return true;
}

bool built_for(const Gpu& gpu) {
  std::istringstream names(built_architectures());
  for (std::string name; std::getline(names, name, ';');) {
    if (std::atoi(name.c_str()) / 10 == gpu.major) return true;  // "90a", "100a", "89-real"
  }
  return false;
}

std::string built_architectures() {
  return WEFT_CUDA_ARCHITECTURES;
}

Gpus find_gpus() {
  Gpus gpus;
  int driver = 0, runtime = 0, count = 0;
  cudaRuntimeGetVersion(&runtime);
  gpus.runtime = cuda_version(runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    gpus.why_none = "no NVIDIA driver answers on this machine";
    return gpus;
  }
  gpus.driver = cuda_version(driver);
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    gpus.why_none = fmt::format(
        "the NVIDIA driver serves CUDA {}, and this program was built with CUDA {}; install a newer driver",
        gpus.driver, gpus.runtime);
  } else if (status != cudaSuccess || count == 0) {
    gpus.why_none = fmt::format("CUDA finds no GPU here ({}); see nvidia-smi and CUDA_VISIBLE_DEVICES",
                                cudaGetErrorString(status));
  }
  if (!gpus.why_none.empty()) return gpus;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    cuda::check(cudaGetDeviceProperties(&p, i), "read the properties of a GPU");
    gpus.list.push_back({.name = p.name,
                         .major = p.major,
                         .minor = p.minor,
                         .multiprocessors = p.multiProcessorCount,
                         .memory = p.totalGlobalMem});
  }
  return gpus;
}

GpuMemory gpu_memory(int index) {
  GpuMemory memory;
  cuda::check(cudaSetDevice(index), "use a GPU");
  cuda::check(cudaMemGetInfo(&memory.free, &memory.total), "ask a GPU for its memory");
  return memory;
}

std::size_t gpu_bytes_in_use(int index) {
  const GpuMemory memory = gpu_memory(index);
  return memory.total - memory.free;
}

std::unique_ptr<Arena> gpu_arena(int index, std::size_t bytes, const TooLittleText& too_little) {
  const auto refuse = [&](const GpuMemory& found) {
    if (too_little) throw ConfigError(too_little(found));
    config_fail("GPU {}: {:.1f} MiB are needed in one piece, and {:.1f} of its {:.1f} MiB are free", index,
                static_cast<double>(bytes) / (1 << 20), static_cast<double>(found.free) / (1 << 20),
                static_cast<double>(found.total) / (1 << 20));
  };
  if (const GpuMemory found = gpu_memory(index); bytes > found.free) refuse(found);
  void* base = nullptr;
  const cudaError_t status = cudaMalloc(&base, bytes);
  if (status == cudaErrorMemoryAllocation) {  // in pieces, or taken by another since
    cudaGetLastError();                       // it is reported here; leave no trace
    refuse(gpu_memory(index));
  }
  cuda::check(status, "reserve device memory");
  return std::make_unique<Arena>(Device{DeviceKind::kCuda, index}, static_cast<std::byte*>(base), bytes,
                                 [base, index] {
                                   cudaSetDevice(index);
                                   cudaFree(base);
                                 });
}

namespace cuda {

void failed(cudaError_t status, const char* what) {
  throw Error(cuda_error_text(what, cudaGetErrorName(status), cudaGetErrorString(status)));
}

void check_kernels(cudaStream_t stream, const char* what) {
  const cudaError_t status = cudaStreamQuery(stream);
  if (status != cudaErrorNotReady) check(status, what);
}

}  // namespace cuda
}  // namespace weft
