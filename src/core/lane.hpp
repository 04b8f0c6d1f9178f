// Lane: what a rank's code may use. Passed down as a parameter; never global, never stored in a module.
#pragma once

#include "core/arena.hpp"
#include "core/device.hpp"
#include "core/workers.hpp"

namespace weft {

// An ordered queue of device work. On the CPU work is done when the call returns and the handle is null.
struct Stream {
  void* handle = nullptr;
};

// What a rank uses of its device beside memory and stream: library handles, tuned plans, staging memory.
// Made and known by the operations of that device; null on the CPU.
class DeviceTools {
 public:
  virtual ~DeviceTools() = default;
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
