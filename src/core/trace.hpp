// Times of what a lane's device did, by name: for profiles and timelines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// What a trace measures of one operation. Times in microseconds since the trace began.
struct TracedOperation {
  std::string name;
  double start = 0, duration = 0;
};

}  // namespace weft
