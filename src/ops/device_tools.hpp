// The tools of a device (see Lane): made once for each rank.
#pragma once

#include <memory>
#include <string>

#include "core/gpu.hpp"
#include "core/lane.hpp"

namespace weft::ops {

struct OpenedDevice {
  std::unique_ptr<DeviceTools> tools;
  Stream compute;  // the stream that tools own
};

struct DeviceOptions {
  // Where tuned plans of matrix products are kept between runs; empty: nowhere.
  std::string plan_cache;
  // Matrix products: the first of each shape tries several algorithms and keeps the fastest. Off: the
  // library's own choice, whatever was tuned before (plan_cache is neither read nor written).
  bool tune = true;
};
// A stream and library handles on a GPU; nothing for the CPU and for meta memory.
OpenedDevice open_device(Device device, const DeviceOptions& options = {});

// cuDNN; nothing without the CUDA backend.
GpuLibrary attention_library();

}  // namespace weft::ops
