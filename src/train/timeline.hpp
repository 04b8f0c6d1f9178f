// The file of a timeline: Chrome's Trace Event Format, which Perfetto reads. One process for each rank, one
// row (thread) for each kind of what a rank does.
#pragma once

#include <string>
#include <vector>

#include "core/trace.hpp"

namespace weft {

struct TimelineRank {
  int rank = 0;      // of the world: the process
  std::string name;  // "rank 3 (tp 1, pp 0, dp 1)"
  double shift = 0;  // added to every time of this rank, in microseconds
};

// The events of one rank, with a comma between. What overlaps on a communicator's row goes to rows beside it.
std::string timeline_events(const TimelineRank& rank, std::vector<TracedOperation> operations);

// What stands before, between and behind the events of the ranks. `notes`: names and texts about the whole.
std::string timeline_head(const std::vector<std::pair<std::string, std::string>>& notes);
inline constexpr const char* kTimelineBetween = ",\n";
inline constexpr const char* kTimelineTail = "\n]}\n";

}  // namespace weft
