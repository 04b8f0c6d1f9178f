// The GPUs of this machine. In a build without the CUDA backend there are none, and the reason says so.
#pragma once

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
  std::size_t memory = 0, free = 0;  // bytes
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

// Bytes in use on a GPU, by everyone.
std::size_t gpu_bytes_in_use(int index);

// One reservation of device memory. An Error that names both numbers when the GPU has less free.
std::unique_ptr<Arena> gpu_arena(int index, std::size_t bytes);

}  // namespace weft
