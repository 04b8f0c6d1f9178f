// Whole tensors from the parts that tensor-parallel ranks hold: for files, scores and tests, never within a
// step.
#pragma once

#include "comm/communicator.hpp"
#include "nn/param.hpp"

namespace weft {

// `local`: this rank's part of a tensor (LogicalTensor::local_shape(), padding included). The whole of it,
// without padding, on every rank. Collective over tp.
Tensor gather_whole(Lane& lane, Communicator& tp, const LogicalTensor& part, const Tensor& local);

}  // namespace weft
