// Collectives between GPUs, by NCCL. A group of GPU ranks is a group of host ranks first (threads, or
// processes under MPI): through it the ranks find each other, and tensors in host memory go through it still.
// Each group has a stream of its own beside the compute stream: an operation begins when the compute stream
// has come to where it was called, and wait() makes the compute stream wait, not the host.
//
// Sums are NCCL's: the same for the same layout, but in no rank order, and 16-bit types are rounded on the
// way.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.hpp"
#include "core/gpu.hpp"

namespace weft {

struct NcclOptions {
  // An operation that takes longer, and a rank of the host world that has failed, end all operations of this
  // rank.
  std::chrono::milliseconds timeout{600'000};
};

// Collective over `host`, which outlives the result; every rank has its own GPU (or shares one where NCCL
// allows it: NCCL_MULTI_RANK_GPU_ENABLE=1). The lane is on that GPU. Error where NCCL refuses, with its
// reason.
std::unique_ptr<Communicator> nccl_communicator(Communicator& host, Lane& lane,
                                                const NcclOptions& options = {});

// Whether NCCL has been told (NCCL_MULTI_RANK_GPU_ENABLE=1) that several ranks may share a GPU: for tests of
// layouts, never for speed.
bool nccl_ranks_share_gpus();

// NCCL; nothing without the CUDA backend.
GpuLibrary nccl_library();

// What a rank of a group says of NCCL's failure: `attempt` as in "cannot {attempt}", `error` its status in
// words, `last` what it noted last (may be empty).
std::string nccl_error_text(const std::string& who, const std::string& attempt, const std::string& error,
                            const std::string& last);

}  // namespace weft
