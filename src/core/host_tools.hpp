// The tools of a rank on the CPU, where work is done when its call returns: the host's times alone.
#pragma once

#include "core/lane.hpp"

namespace weft {

class HostTools final : public DeviceTools {
 public:
  void trace(bool on) override;
  std::size_t begin_traced(TracedOperation what, Stream on) override;
  void end_traced(std::size_t which, Stream on) override;
  std::vector<TracedOperation> traced() override;
  // Refuses: nothing is left to repeat.
  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) override;
};

}  // namespace weft
