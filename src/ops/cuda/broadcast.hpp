#pragma once

#include <cuda_runtime_api.h>

#include "core/tensor.hpp"

namespace weft::ops::cuda {

// c [m, n]: every row becomes `row` [n]. c's dtype is row's or its accumulator.
void broadcast_row(cudaStream_t stream, const Tensor& row, const Tensor& c);

}  // namespace weft::ops::cuda
