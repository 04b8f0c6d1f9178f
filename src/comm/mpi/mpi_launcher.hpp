// Ranks as processes: the `mpi` backend, and the launcher that runs this process's rank. Nothing here needs
// MPI's own headers: in a build without MPI, mpi_available() is false and the rest throws ConfigError.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace weft {

bool mpi_available();
// "Open MPI v4.1.4"; empty in a build without MPI.
std::string mpi_library();

struct MpiWorld {
  int rank = 0, size = 1;
};
// This process's place. Starts MPI on the first call.
MpiWorld mpi_world();

struct MpiOptions {
  std::chrono::milliseconds timeout{600'000};  // --distributed-timeout-seconds
  // After a failure: how long the ranks may take to end by the hand of the rank that reports it.
  std::chrono::milliseconds grace{5'000};
  // Where the run is ("step 12"), for the report of a failure. Called from another thread at any time.
  std::function<std::string()> where;
  // Prints a failure, on the one rank that reports it; without it, a line per problem on stderr.
  std::function<void(const std::vector<std::string>& problems)> report;
  // Longer messages are cut; MPI counts in int.
  std::size_t longest_message = std::size_t{1} << 30;
};

// Before a process ends in the ordinary way: ends MPI where mpi_world() has started it and nothing has run,
// which MPI would take for a crash.
void leave_mpi();

// Runs body(world) for this process's rank; returns when all ranks have returned from theirs, and MPI is
// finished then: at most once a process.
//
// In a world of one, an exception of the body is rethrown, its message naming the rank. In a larger world
// this returns only without a failure. The first failure (exception, timeout, calls of a group that differ)
// is printed by one rank, and all processes end: with status 2 for a ConfigError, else 1.
void run_mpi_ranks(const MpiOptions& options, const std::function<void(Communicator& world)>& body);

}  // namespace weft
