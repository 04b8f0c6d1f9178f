// A timeline (--trace) as it was written, and what must hold of every one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::testing {

struct TimelineFile {
  struct Event {
    std::string name, category;
    std::int64_t start = 0, end = 0;  // nanoseconds
    int process = -1, thread = -1;
    std::int64_t microbatch = -1, chunk = -1, bytes = -1;
  };
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> rows;  // by process and thread
  std::vector<Event> events;                        // that have a length
  std::map<std::string, std::string> notes;

  // Those of a row, of one process (−1: of all).
  std::vector<Event> of(const std::string& row, int process = -1) const;
};

// Throws where the text is no JSON, or an event lacks ph, ts, dur, pid or tid.
TimelineFile parse_timeline(const std::string& text);
TimelineFile read_timeline(const std::filesystem::path& path);

// Two events of one row of which neither lies within the other, an event of a row without a name, or on a
// communicator's row one within another: said in words; empty where there is none.
std::string fault_of(const TimelineFile& timeline);

}  // namespace weft::testing
