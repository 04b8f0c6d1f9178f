// The GPUs of this machine. In a build without the CUDA backend there are none, and the reason says so.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/arena.hpp"

namespace weft {

// Whether this program has the CUDA backend.
bool built_with_cuda();

struct Gpu {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::size_t memory = 0;  // bytes
};

struct Gpus {
  std::vector<Gpu> list;
  std::string why_none;         // where the list is empty: what is missing, and what to do about it
  std::string driver, runtime;  // CUDA versions, "13.0"
};
// Whether this program's kernels run on a GPU: they are compiled for chips of one generation each
// (-DWEFT_CUDA_ARCH).
bool built_for(const Gpu& gpu);
// Those generations as they were named, "90a"; empty without the CUDA backend.
std::string built_architectures();

// Looks; changes nothing, and makes no context where there is none.
Gpus find_gpus();

struct GpuMemory {
  std::size_t free = 0, total = 0;  // bytes
};
// Of everyone who uses the GPU. Makes CUDA's context there, which takes some of it.
GpuMemory gpu_memory(int index);
// Bytes in use on a GPU, by everyone.
std::size_t gpu_bytes_in_use(int index);

// One reservation of device memory, which lives as long as the arena. Where the GPU has less free: a
// ConfigError of the text that `too_little` makes, or without it of both numbers.
using TooLittleText = std::function<std::string(const GpuMemory& found)>;
std::unique_ptr<Arena> gpu_arena(int index, std::size_t bytes, const TooLittleText& too_little = {});

// A library of NVIDIA's that is found when the program starts.
struct GpuLibrary {
  std::string name, file;               // "cuDNN", "libcudnn.so.9"
  std::array<int, 3> built{}, found{};  // versions: what this program was compiled with, what is here
};
std::string version_text(const std::array<int, 3>& version);
// What is wrong with the version found, with the fix; empty: nothing. A newer one of the same major version
// serves, an older one lacks what was compiled in; patches change no interface.
std::string problem_of(const GpuLibrary& library);

// The text of a failed call of CUDA: "cannot {attempt}". Errors of kernels show at some later call: then it
// says so, and how to find the kernel. `name` as cudaGetErrorName gives it.
std::string cuda_error_text(const std::string& attempt, const std::string& name,
                            const std::string& description);

}  // namespace weft
