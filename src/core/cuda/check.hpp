// CUDA's status codes as errors.
#pragma once

#include <cuda_runtime_api.h>

#include "core/check.hpp"

namespace weft::cuda {

// Throws unless `status` is success; `what` is the attempt, as in "cannot {what}".
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) [[likely]]
    return;
  fail("CUDA: cannot {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace weft::cuda
