// What travels: every operation announces its call to each rank concerned, with the data behind it when that
// is short. A rank compares the call with its own before it takes the data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/local/exchange.hpp"

namespace weft::mpi {

using local::Call;
using local::Kind;

// Data up to this size travels with the call. With it a message stays below the 4 KiB that MPI libraries send
// at once through shared memory.
constexpr std::size_t kInline = 3072;
constexpr std::size_t kLongestName = 200;

// The longest message that announces a call in a group of `ranks`.
std::size_t longest_announcement(int ranks);

// Writes call, sequence number and data to `to`, which has room; returns the bytes written.
std::size_t encode(const Call& call, std::uint64_t sequence, const std::byte* data, std::size_t data_bytes,
                   std::byte* to);

struct Announcement {
  Call call;  // without views
  std::uint64_t sequence = 0;
  const std::byte* data = nullptr;  // inside the message
  std::size_t data_bytes = 0;
};
// Throws Error for what encode() cannot have written.
Announcement decode(const std::byte* message, std::size_t bytes);

}  // namespace weft::mpi
