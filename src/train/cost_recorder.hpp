// Tools that note what operations cost and take no times: on a meta lane, which runs none, or on the CPU.
#pragma once

#include <utility>
#include <vector>

#include "core/lane.hpp"

namespace weft {

class CostRecorder : public DeviceTools {
 public:
  void trace(bool on) override {
    tracing_ = on;
    operations_.clear();
  }
  std::size_t begin_traced(TracedOperation what, Stream) override {
    if (what.row == TraceRow::kCompute) operations_.push_back(std::move(what));
    return 0;
  }
  void end_traced(std::size_t, Stream) override {}
  std::vector<TracedOperation> traced() override { return operations_; }
  std::unique_ptr<RecordedWork> record(const std::function<void()>&) override {
    fail("nothing is recorded here");
  }

 private:
  std::vector<TracedOperation> operations_;
};

}  // namespace weft
