// Times of what a rank and its device did, by name: for profiles and timelines.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace weft {

// What an operation is and must do at least, so that its time can be held against a floor.
struct OperationCost {
  std::string name;
  double bytes = 0;  // of memory: every operand read or written once; of a collective: what this rank sends
  double flops = 0;  // of matrix products; 0 for what moves memory only
};

// The rows of a rank's timeline; each communicator has one of its own.
enum class TraceRow : std::uint8_t { kSchedule, kCompute, kGroup, kWaits };

// Times in microseconds since the trace began.
struct TracedOperation {
  OperationCost cost;
  double start = 0, end = 0;
  TraceRow row = TraceRow::kCompute;
  std::string group;                // kGroup: the communicator
  int microbatch = -1, chunk = -1;  // of an action of a pipeline

  double duration() const { return end - start; }
};

inline TracedOperation on_row(TraceRow row, std::string name, double bytes = 0) {
  TracedOperation what;
  what.cost.name = std::move(name);
  what.cost.bytes = bytes;
  what.row = row;
  return what;
}

}  // namespace weft
