// Lane: what a rank's code may use. Passed down as a parameter; never global, never stored in a module.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/arena.hpp"
#include "core/device.hpp"
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
// Made and known by the operations of that device; null on the CPU.
class DeviceTools {
 public:
  virtual ~DeviceTools() = default;

  // --- times of operations. While on, each is enclosed by two events of the compute stream, which costs a
  // little.
  bool tracing() const { return tracing_; }
  virtual void trace(bool on) = 0;
  virtual void begin_traced(OperationCost cost) = 0;
  virtual void end_traced() = 0;
  // Waits for the device, and hands out what has been traced since it was turned on.
  virtual std::vector<TracedOperation> traced() = 0;

  // --- recording: `work` gives operations to the compute stream, which keeps them and does nothing yet. They
  // must neither wait for the device nor talk to it in another way, nor be of a kind never run before.
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& work) = 0;

 protected:
  bool tracing_ = false;
};

// An operation, if the lane is traced; cost() says which.
class TraceScope {
 public:
  template <class Cost>
  TraceScope(DeviceTools* tools, const Cost& cost)
      : tools_(tools != nullptr && tools->tracing() ? tools : nullptr) {
    if (tools_ != nullptr) tools_->begin_traced(cost());
  }
  ~TraceScope() {
    if (tools_ != nullptr) tools_->end_traced();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  DeviceTools* tools_;
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
