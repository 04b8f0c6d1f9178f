// From the front of an operation to its kernels. The front checks, allocates (results and scratch, so that a
// meta lane counts them) and then calls WEFT_OPS_DISPATCH once; twins of all devices have the same signature.
#pragma once

#include <string_view>

#include "core/lane.hpp"

namespace weft::ops {

[[noreturn]] inline void no_kernels(std::string_view op, Device device) {
  fail("{}: this build has no kernels for device {}", op, name_of(device.kind));
}

}  // namespace weft::ops

// WEFT_OPS_DISPATCH(lane, twin, arguments...): runs cpu::twin(lane, arguments...); nothing on a meta lane.
#define WEFT_OPS_DISPATCH(lane, twin, ...)             \
  switch ((lane).device().kind) {                      \
    case DeviceKind::kMeta:                            \
      break;                                           \
    case DeviceKind::kCpu:                             \
      cpu::twin(lane, __VA_ARGS__);                    \
      break;                                           \
    default:                                           \
      ::weft::ops::no_kernels(#twin, (lane).device()); \
  }
