#include "support/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "io/atomic_file.hpp"

namespace weft::testing {

std::vector<TimelineFile::Event> TimelineFile::of(const std::string& row, int process) const {
  std::vector<Event> found;
  for (const Event& event : events) {
    if (process >= 0 && event.process != process) continue;
    const auto at = rows.find({event.process, event.thread});
    if (at != rows.end() && at->second == row) found.push_back(event);
  }
  return found;
}

TimelineFile parse_timeline(const std::string& text) {
  const nlohmann::json whole = nlohmann::json::parse(text);
  TimelineFile timeline;
  for (const auto& [name, value] : whole.at("otherData").items()) timeline.notes[name] = value;
  for (const nlohmann::json& item : whole.at("traceEvents")) {
    TimelineFile::Event event;
    event.name = item.at("name");
    event.start = std::llround(item.at("ts").get<double>() * 1e3);
    event.end = event.start + std::llround(item.at("dur").get<double>() * 1e3);
    event.process = item.at("pid");
    event.thread = item.at("tid");
    const nlohmann::json& args = item.at("args");
    const std::string kind = item.at("ph");
    if (kind == "M") {
      if (event.name == "process_name") timeline.processes[event.process] = args.at("name");
      if (event.name == "thread_name") timeline.rows[{event.process, event.thread}] = args.at("name");
      continue;
    }
    if (kind != "X") throw std::runtime_error("an event of kind " + kind);
    event.category = item.at("cat");
    event.microbatch = args.value("microbatch", std::int64_t{-1});
    event.chunk = args.value("chunk", std::int64_t{-1});
    event.bytes = args.value("bytes", std::int64_t{-1});
    timeline.events.push_back(std::move(event));
  }
  return timeline;
}

TimelineFile read_timeline(const std::filesystem::path& path) {
  return parse_timeline(read_file(path));
}

std::string fault_of(const TimelineFile& timeline) {
  std::vector<TimelineFile::Event> events = timeline.events;
  const auto row_of = [](const auto& e) { return std::pair(e.process, e.thread); };
  std::stable_sort(events.begin(), events.end(), [&](const auto& a, const auto& b) {
    return std::tuple(row_of(a), a.start, -a.end) < std::tuple(row_of(b), b.start, -b.end);
  });
  std::vector<const TimelineFile::Event*> open;  // each within the one before
  const TimelineFile::Event* before = nullptr;
  for (const TimelineFile::Event& e : events) {
    if (!timeline.rows.contains(row_of(e))) return fmt::format("{} is on a row without a name", e.name);
    if (!timeline.processes.contains(e.process)) return fmt::format("{} is of no process", e.name);
    if (before != nullptr && row_of(*before) != row_of(e)) open.clear();
    before = &e;
    while (!open.empty() && open.back()->end <= e.start) open.pop_back();
    const std::string where = fmt::format("{} [{}, {}) of {}, {}", e.name, e.start, e.end,
                                          timeline.processes.at(e.process), timeline.rows.at(row_of(e)));
    if (!open.empty() && (e.end > open.back()->end || e.category == "communication")) {
      return fmt::format("{} overlaps {} [{}, {})", where, open.back()->name, open.back()->start,
                         open.back()->end);
    }
    open.push_back(&e);
  }
  return {};
}

}  // namespace weft::testing
