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

struct Lane {
  Arena& arena;
  Workers& workers;
  Stream compute;

  Device device() const { return arena.device(); }
  bool meta() const { return arena.device().kind == DeviceKind::kMeta; }
  Tensor alloc(DType dtype, const Shape& shape, const char* what) { return arena.alloc(dtype, shape, what); }
};

}  // namespace weft
