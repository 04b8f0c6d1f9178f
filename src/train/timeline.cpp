#include "train/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace weft {
namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Whole nanoseconds, so that what touches or lies within another keeps doing so in the file.
std::int64_t nanoseconds(double microseconds) {
  return std::llround(microseconds * 1e3);
}
std::string microseconds(std::int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

// Where a row stands: the schedule, then operations, then the groups in this order and the others by name,
// then the waits.
std::tuple<int, std::size_t, std::string> place_of(const TracedOperation& op) {
  constexpr std::array kFirst = {"tp", "pp", "dp", "model"};
  switch (op.row) {
    case TraceRow::kSchedule:
      return {0, 0, ""};
    case TraceRow::kCompute:
      return {1, 0, ""};
    case TraceRow::kWaits:
      return {3, 0, ""};
    case TraceRow::kGroup:
      break;
  }
  const std::string family = op.group.substr(0, op.group.find('.'));
  const auto at = std::find(kFirst.begin(), kFirst.end(), family);
  return {2, static_cast<std::size_t>(at - kFirst.begin()), op.group};
}

std::string row_name(const TracedOperation& op) {
  switch (op.row) {
    case TraceRow::kSchedule:
      return "schedule";
    case TraceRow::kCompute:
      return "compute";
    case TraceRow::kWaits:
      return "waits";
    case TraceRow::kGroup:
      break;
  }
  return op.group;
}

const char* category_of(TraceRow row) {
  constexpr std::array kNames = {"schedule", "compute", "communication", "wait"};
  return kNames[static_cast<std::size_t>(row)];
}

// Numbers that say something, as the arguments of an event.
std::string arguments_of(const TracedOperation& op) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", name, value);
  };
  if (op.microbatch >= 0) add("microbatch", fmt::to_string(op.microbatch));
  if (op.chunk >= 0) add("chunk", fmt::to_string(op.chunk));
  if (op.cost.bytes > 0 || op.row == TraceRow::kGroup) add("bytes", fmt::format("{:.0f}", op.cost.bytes));
  if (op.cost.flops > 0) add("flops", fmt::format("{:.0f}", op.cost.flops));
  return text;
}

class RankWriter {
 public:
  explicit RankWriter(const TimelineRank& rank) : rank_(rank) {
    meta("process_name", 0, fmt::format("\"name\":{}", quoted(rank.name)));
    meta("process_sort_index", 0, fmt::format("\"sort_index\":{}", rank.rank));
  }

  // The operations of a row, in the order of their starts, the longer first.
  void add_row(const std::vector<const TracedOperation*>& operations) {
    const bool group = operations.front()->row == TraceRow::kGroup;
    std::vector<std::pair<int, double>> beside;  // rows, and until when they are taken
    for (const TracedOperation* op : operations) {
      auto row = std::find_if(beside.begin(), beside.end(),
                              [&](const auto& r) { return !group || r.second <= op->start; });
      if (row == beside.end()) {
        const std::string name = row_name(*op);
        beside.emplace_back(open(beside.empty() ? name : fmt::format("{} ({})", name, beside.size() + 1)), 0);
        row = beside.end() - 1;
      }
      row->second = op->end;
      event(*op, row->first);
    }
  }

  std::string text() && { return std::move(text_); }

 private:
  int open(const std::string& name) {
    const int thread = ++rows_;
    meta("thread_name", thread, fmt::format("\"name\":{}", quoted(name)));
    meta("thread_sort_index", thread, fmt::format("\"sort_index\":{}", thread));
    return thread;
  }
  void meta(const char* name, int thread, const std::string& arguments) {
    line(fmt::format(R"({{"name":"{}","ph":"M","ts":0,"dur":0,"pid":{},"tid":{},"args":{{{}}}}})", name,
                     rank_.rank, thread, arguments));
  }
  void event(const TracedOperation& op, int thread) {
    const std::int64_t start = nanoseconds(op.start + rank_.shift), end = nanoseconds(op.end + rank_.shift);
    line(fmt::format(R"({{"name":{},"cat":"{}","ph":"X","ts":{},"dur":{},"pid":{},"tid":{},"args":{{{}}}}})",
                     quoted(op.cost.name), category_of(op.row), microseconds(start),
                     microseconds(std::max<std::int64_t>(end - start, 0)), rank_.rank, thread,
                     arguments_of(op)));
  }
  void line(const std::string& object) {
    if (!text_.empty()) text_ += kTimelineBetween;
    text_ += object;
  }

  const TimelineRank& rank_;
  std::string text_;
  int rows_ = 0;
};

}  // namespace

std::string timeline_events(const TimelineRank& rank, std::vector<TracedOperation> operations) {
  std::stable_sort(operations.begin(), operations.end(), [](const auto& a, const auto& b) {
    return a.start != b.start ? a.start < b.start : a.end > b.end;
  });
  std::map<std::tuple<int, std::size_t, std::string>, std::vector<const TracedOperation*>> rows;
  for (const TracedOperation& op : operations) rows[place_of(op)].push_back(&op);
  RankWriter writer(rank);
  for (const auto& [place, list] : rows) writer.add_row(list);
  return std::move(writer).text();
}

std::string timeline_head(const std::vector<std::pair<std::string, std::string>>& notes) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"otherData\":{";
  for (const auto& [name, value] : notes) {
    text += fmt::format("{}{}:{}", text.back() == '{' ? "" : ",", quoted(name), quoted(value));
  }
  return text + "},\"traceEvents\":[\n";
}

}  // namespace weft
