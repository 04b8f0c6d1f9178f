#include "comm/host_operation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace weft {

void HostOperation::started(const Lane& lane, const Communicator& group, const char* call,
                            std::uint64_t bytes) {
  group_ = &group;
  call_ = call;
  bytes_ = bytes;
  if (lane.tools != nullptr && lane.tools->tracing()) start_ = std::chrono::steady_clock::now();
}

std::string HostOperation::name() const {
  return group_ == nullptr ? Operation::name() : fmt::format("{} {}", group_->name(), call_);
}

void HostOperation::ended(const Lane& lane, Time when) const {
  if (start_ == Time{} || lane.tools == nullptr || !lane.tools->tracing()) return;
  if (start_ < lane.tools->began()) return;  // in a trace before this one
  TracedOperation what = on_row(TraceRow::kGroup, call_, static_cast<double>(bytes_));
  what.group = group_->name();
  lane.tools->add_traced(std::move(what), start_, std::max(start_, when));
}

}  // namespace weft
