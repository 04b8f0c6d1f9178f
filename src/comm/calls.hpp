// What every backend checks before it starts an operation, and how it counts its bytes: bytes_sent() is the
// same on every backend, planned ones included, so that a plan's traffic can be compared with a run's.
//
// Bytes that one rank of n sends, by the algorithm that moves the fewest (for B bytes of the whole tensor):
//   all_reduce                  2 (n - 1) / n B      ring: reduce-scatter, then all-gather; rounded down
//   all_gather, reduce_scatter    (n - 1) / n B      B: bytes of `full`
//   all_to_all                  the rows for other ranks
//   broadcast                   B on the root, 0 elsewhere
//   send_receive                the tensors sent to other ranks
//   barrier, split              0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace weft::calls {

// The group as messages need it.
struct Who {
  const std::string& name;
  int rank, size;
  DeviceKind device;  // where the tensors must be
};

// Each checks its tensors (WEFT_CHECK with the shapes) and returns the bytes that this rank sends.
std::uint64_t all_reduce(const Who& who, const Tensor& x);
std::uint64_t all_gather(const Who& who, const Tensor& shard, const Tensor& full);
std::uint64_t reduce_scatter(const Who& who, const Tensor& full, const Tensor& shard);
std::uint64_t all_to_all(const Who& who, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                         const Tensor& receive, const std::vector<std::int64_t>& receive_rows);
std::uint64_t broadcast(const Who& who, const Tensor& x, int root);
std::uint64_t send_receive(const Who& who, const std::vector<Communicator::Message>& sends,
                           const std::vector<Communicator::Message>& receives);

// The tensors of messages, in this order.
std::vector<Tensor> tensors_of(const std::vector<Communicator::Message>& messages,
                               const std::vector<Communicator::Message>& more = {});

// For timelines: "send", "receive" or "send_receive"; and the bytes of its messages, either way.
const char* name_of(const std::vector<Communicator::Message>& sends,
                    const std::vector<Communicator::Message>& receives);
std::uint64_t bytes_of(const std::vector<Communicator::Message>& sends,
                       const std::vector<Communicator::Message>& receives);

}  // namespace weft::calls
