// What a rank's operations use on its GPU: the compute stream, library handles, tuned plans, pinned memory.
#pragma once

#include <cublasLt.h>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <memory>
#include <vector>

#include "core/cuda/check.hpp"
#include "core/lane.hpp"
#include "ops/device_tools.hpp"

namespace weft::ops::cuda {

using weft::cuda::check;

// Pinned host memory for small uploads that must not wait for the device: a ring of slots, each used again
// when the copy out of it has passed. All slots have one size, that of the largest upload so far: taking
// pinned memory waits for the device, and must not happen again once a step has been seen.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  void upload(cudaStream_t stream, const void* from, void* to, std::size_t bytes);

 private:
  struct Slot {
    std::byte* memory = nullptr;  // in memory_
    cudaEvent_t copied = nullptr;
  };
  void grow(std::size_t bytes);

  static constexpr std::size_t kSlots = 32;
  Slot slots_[kSlots];
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;  // of a slot
  std::size_t next_ = 0;
};

// Events around operations.
class Trace {
 public:
  ~Trace();
  // Waits for the stream; returns the host's time of the start.
  DeviceTools::HostTime start(cudaStream_t stream);
  std::size_t begin(cudaStream_t stream, TracedOperation what);
  void end(cudaStream_t stream, std::size_t which);
  std::vector<TracedOperation> results();

 private:
  struct Entry {
    TracedOperation what;
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  std::vector<Entry> entries_;
  cudaEvent_t start_ = nullptr;
};

class GemmPlans;       // gemm_plans.hpp
class AttentionPlans;  // cudnn_attention.cpp
std::shared_ptr<GemmPlans> make_gemm_plans(int device, const DeviceOptions& options);
std::shared_ptr<AttentionPlans> make_attention_plans(int device);

class Tools final : public DeviceTools {
 public:
  Tools(int device, const DeviceOptions& options);
  ~Tools() override;
  Tools(const Tools&) = delete;
  Tools& operator=(const Tools&) = delete;

  void trace(bool on) override;
  std::size_t begin_traced(TracedOperation what, Stream on) override {
    return tracing->begin(stream_or_own(on), std::move(what));
  }
  void end_traced(std::size_t which, Stream on) override { tracing->end(stream_or_own(on), which); }
  std::vector<TracedOperation> traced() override;
  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) override;

  std::unique_ptr<Trace> tracing;  // null: off
  int device;
  int multiprocessors = 0;
  bool clusters = false;  // thread block clusters: from compute capability 9.0 on
  // Describes a tensor to Hopper's copy engine; null on other chips, and in a build that is not for Hopper.
  PFN_cuTensorMapEncodeTiled_v12000 encode_tensor_map = nullptr;
  cudaStream_t stream = nullptr;
  Staging staging;
  std::shared_ptr<GemmPlans> gemms;
  std::shared_ptr<AttentionPlans> attentions;

 private:
  cudaStream_t stream_or_own(Stream on) const {
    return on.handle != nullptr ? static_cast<cudaStream_t>(on.handle) : stream;
  }
};

inline Tools& tools(const Lane& lane) {
  WEFT_CHECK(lane.tools != nullptr, "a lane on a GPU without tools");
  return static_cast<Tools&>(*lane.tools);
}
inline cudaStream_t stream(const Lane& lane) {
  return static_cast<cudaStream_t>(lane.compute.handle);
}

}  // namespace weft::ops::cuda
