#include "core/host_tools.hpp"

#include <utility>

#include "core/check.hpp"

namespace weft {

void DeviceTools::add_traced(TracedOperation what, HostTime start, HostTime end) {
  what.start = since_began(start);
  what.end = since_began(end);
  seen_.push_back(std::move(what));
}

void HostTools::trace(bool on) {
  tracing_ = on;
  seen_.clear();
  began_ = std::chrono::steady_clock::now();
}

std::size_t HostTools::begin_traced(TracedOperation what, Stream) {
  what.start = since_began(std::chrono::steady_clock::now());
  seen_.push_back(std::move(what));
  return seen_.size() - 1;
}

void HostTools::end_traced(std::size_t which, Stream) {
  seen_[which].end = since_began(std::chrono::steady_clock::now());
}

std::vector<TracedOperation> HostTools::traced() {
  return seen_;
}

std::unique_ptr<RecordedWork> HostTools::record(const std::function<void()>&) {
  fail("work of the CPU cannot be recorded: it is done when its call returns");
}

}  // namespace weft
