// Ranks as threads of this process: the `local` backend, and the launcher that runs them.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "comm/communicator.hpp"

namespace weft {

// A pretended link between ranks, to measure overlap: an operation is done latency + bytes / bandwidth after
// its last rank has joined it, whatever the ranks do meanwhile.
struct LinkModel {
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  // 0: without end
  // An operation starts when the one before it is done, as on a stream: of the group's collectives, or of the
  // messages from the same sender to the same receiver. False: operations ride beside each other, so that
  // many at once take no longer than the largest.
  bool queued = false;
};

struct LocalOptions {
  int ranks = 1;
  std::chrono::milliseconds timeout{600'000};  // --distributed-timeout-seconds
  std::optional<LinkModel> link;
  // After a failure: how long ranks may take to notice it. A rank that is stuck in a computation cannot be
  // ended alone, so then the failure is printed and the process ends with status 1. 0: wait for ever.
  std::chrono::milliseconds grace{0};
};

// Runs body(world) in `ranks` threads and joins them all. The first failure (exception, timeout, ranks of a
// group whose calls differ) sets a flag that every wait watches; the other ranks leave with Aborted; the
// first failure is rethrown here, its message naming the rank. No rank can hang for longer than the timeout.
void run_local_ranks(const LocalOptions& options, const std::function<void(Communicator& world)>& body);

}  // namespace weft
