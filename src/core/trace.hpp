// Times of what a lane's device did, by name: for profiles and timelines.
#pragma once

#include <cstdint>
#include <string>

namespace weft {

// What an operation is and must do at least, so that its time can be held against a floor.
struct OperationCost {
  std::string name;
  double bytes = 0;  // of memory: every operand read or written once
  double flops = 0;  // of matrix products; 0 for what moves memory only
};

// Times in microseconds since the trace began.
struct TracedOperation {
  OperationCost cost;
  double start = 0, duration = 0;
};

}  // namespace weft
