// CUDA's status codes as errors.
#pragma once

#include <cuda_runtime_api.h>

#include "core/check.hpp"

namespace weft::cuda {

// Throws what cuda_error_text (core/gpu.hpp) says.
[[noreturn]] void failed(cudaError_t status, const char* what);

// Throws unless `status` is success; `what` is the attempt, as in "cannot {what}".
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) [[unlikely]]
    failed(status, what);
}

// Where a library's call on a stream has failed: throws if a kernel has failed before it, for then that is
// why. `what` as above.
void check_kernels(cudaStream_t stream, const char* what);

}  // namespace weft::cuda
