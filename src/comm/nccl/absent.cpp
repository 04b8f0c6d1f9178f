// Stands in for nccl_communicator.cpp in builds without CUDA.
#include "comm/nccl/nccl_communicator.hpp"

namespace weft {

std::unique_ptr<Communicator> nccl_communicator(Communicator&, Lane&, const NcclOptions&) {
  fail("this build has no CUDA backend, and so no NCCL");
}

GpuLibrary nccl_library() {
  return {};
}

}  // namespace weft
