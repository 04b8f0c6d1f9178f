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

// WEFT_OPS_CUDA(call): the call of a CUDA twin; an Error in a build without them.
#ifdef WEFT_HAS_CUDA
#define WEFT_OPS_CUDA(twin, lane, ...) cuda::twin(lane, __VA_ARGS__);
#else
#define WEFT_OPS_CUDA(twin, lane, ...) ::weft::ops::no_kernels(#twin, Device{DeviceKind::kCuda, 0});
#endif

// WEFT_OPS_DISPATCH(lane, twin, arguments...): runs the twin of the lane's device; nothing on a meta lane,
// whose tools may all the same ask for the costs.
#define WEFT_OPS_DISPATCH(lane, twin, ...)                                                                  \
  {                                                                                                         \
    const TraceScope traced((lane).tools, #twin, [&] { return ::weft::ops::cost_of(#twin, __VA_ARGS__); }); \
    switch ((lane).device().kind) {                                                                         \
      case DeviceKind::kMeta:                                                                               \
        break;                                                                                              \
      case DeviceKind::kCpu:                                                                                \
        cpu::twin(lane, __VA_ARGS__);                                                                       \
        break;                                                                                              \
      case DeviceKind::kCuda:                                                                               \
        WEFT_OPS_CUDA(twin, lane, __VA_ARGS__)                                                              \
        break;                                                                                              \
    }                                                                                                       \
  }

// WEFT_OPS_SIZE(lane, function, arguments...): a size that depends on the device, meta or not.
#define WEFT_OPS_SIZE(lane, function, ...)                                                \
  ((lane).target() == DeviceKind::kCuda ? WEFT_OPS_CUDA_SIZE(function, lane, __VA_ARGS__) \
                                        : cpu::function(lane, __VA_ARGS__))
#ifdef WEFT_HAS_CUDA
#define WEFT_OPS_CUDA_SIZE(function, lane, ...) cuda::function(lane, __VA_ARGS__)
#else
#define WEFT_OPS_CUDA_SIZE(function, lane, ...) \
  (::weft::ops::no_kernels(#function, Device{DeviceKind::kCuda, 0}), std::int64_t{0})
#endif
