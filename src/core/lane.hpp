// Lane: what a rank's code may use. Passed down as a parameter; never global, never stored in a module.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/arena.hpp"
#include "core/device.hpp"
#include "core/profiler.hpp"
#include "core/trace.hpp"
#include "core/workers.hpp"

namespace weft {

// An ordered queue of device work. On the CPU work is done when the call returns and the handle is null.
struct Stream {
  void* handle = nullptr;
};

// Work of a compute stream that the device has been shown and can do again as a whole: the same operations,
// on the same memory. (A CUDA graph.)
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void replay() = 0;
};

// What a rank uses of its device beside memory and stream: library handles, tuned plans, staging memory.
// Made and known by the operations of that device; null on the CPU, unless it is traced (host_tools.hpp).
class DeviceTools {
 public:
  using HostTime = std::chrono::steady_clock::time_point;
  virtual ~DeviceTools() = default;

  // --- times of operations. While on, each is enclosed by two events of a stream, which costs a little.
  bool tracing() const { return tracing_; }
  virtual void trace(bool on) = 0;
  // When the trace began, by the host's clock.
  HostTime began() const { return began_; }
  // `what` begins, and ends, when the stream (null: the compute stream) has come to here. Returns its number.
  virtual std::size_t begin_traced(TracedOperation what, Stream on) = 0;
  virtual void end_traced(std::size_t which, Stream on) = 0;
  // What the host has seen begin and end.
  void add_traced(TracedOperation what, HostTime start, HostTime end);
  // Waits for the device, and hands out what has been traced since it was turned on.
  virtual std::vector<TracedOperation> traced() = 0;

  // --- recording: `work` gives operations to the compute stream, which keeps them and does nothing yet. They
  // must neither wait for the device nor talk to it in another way, nor be of a kind never run before.
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& work) = 0;

 protected:
  double since_began(HostTime t) const {
    return std::chrono::duration<double, std::micro>(t - began_).count();
  }

  bool tracing_ = false;
  HostTime began_{};
  std::vector<TracedOperation> seen_;  // by the host
};

// A named stretch of a rank's work: a range for profilers, and on a traced lane a piece of its timeline,
// which what() describes: an OperationCost, or a TracedOperation of another row.
class TraceScope {
 public:
  template <class What>
  TraceScope(DeviceTools* tools, const char* name, const What& what, Stream on = {})
      : tools_(tools != nullptr && tools->tracing() ? tools : nullptr), on_(on) {
    profiler_push(name);
    if (tools_ != nullptr) number_ = tools_->begin_traced(traced(what()), on_);
  }
  // Of the row of the schedule.
  TraceScope(DeviceTools* tools, const char* name)
      : TraceScope(tools, name, [&] { return on_row(TraceRow::kSchedule, name); }) {}
  ~TraceScope() {
    if (tools_ != nullptr) tools_->end_traced(number_, on_);
    profiler_pop();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  static TracedOperation traced(OperationCost cost) {
    TracedOperation what;
    what.cost = std::move(cost);
    return what;
  }
  static TracedOperation traced(TracedOperation what) { return what; }

  DeviceTools* tools_;
  Stream on_;
  std::size_t number_ = 0;
};

struct Lane {
  Arena& arena;
  Workers& workers;
  Stream compute;
  DeviceTools* tools = nullptr;

  Device device() const { return arena.device(); }
  // The kind of device whose memory a meta lane counts; else the lane's own.
  DeviceKind target() const { return arena.target(); }
  bool meta() const { return arena.device().kind == DeviceKind::kMeta; }
  Tensor alloc(DType dtype, const Shape& shape, const char* what) { return arena.alloc(dtype, shape, what); }
};

}  // namespace weft
