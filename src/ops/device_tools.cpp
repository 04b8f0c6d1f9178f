#include "ops/device_tools.hpp"

#include "ops/dispatch.hpp"

namespace weft::ops {
namespace cuda {
OpenedDevice open(int index, const DeviceOptions& options);  // cuda/tools.cpp
GpuLibrary attention_library();                              // cuda/cudnn_attention.cpp
}  // namespace cuda

OpenedDevice open_device(Device device, const DeviceOptions& options) {
  if (device.kind != DeviceKind::kCuda) return {};
#ifdef WEFT_HAS_CUDA
  return cuda::open(device.index, options);
#else
  (void)options;
  no_kernels("open_device", device);
#endif
}

GpuLibrary attention_library() {
#ifdef WEFT_HAS_CUDA
  return cuda::attention_library();
#else
  return {};
#endif
}

}  // namespace weft::ops
