#include "ops/cuda/tools.hpp"

#include <algorithm>
#include <cstring>

namespace weft::ops::cuda {

Staging::~Staging() {
  for (Slot& slot : slots_) {
    if (slot.copied == nullptr) continue;
    cudaEventSynchronize(slot.copied);
    cudaEventDestroy(slot.copied);
    cudaFreeHost(slot.memory);
  }
}

void Staging::upload(cudaStream_t stream, const void* from, void* to, std::size_t bytes) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  if (slot.copied == nullptr) {
    check(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming), "make an event");
  } else {
    check(cudaEventSynchronize(slot.copied), "wait for an upload");
  }
  if (slot.bytes < bytes) {
    if (slot.memory != nullptr) check(cudaFreeHost(slot.memory), "free pinned memory");
    slot.memory = nullptr;
    slot.bytes = std::max<std::size_t>(bytes, 4096);
    check(cudaMallocHost(&slot.memory, slot.bytes), "take pinned memory");
  }
  std::memcpy(slot.memory, from, bytes);
  check(cudaMemcpyAsync(to, slot.memory, bytes, cudaMemcpyHostToDevice, stream), "upload");
  check(cudaEventRecord(slot.copied, stream), "record an event");
}

Tools::Tools(int index, const DeviceOptions& options) : device(index) {
  check(cudaSetDevice(index), "use a GPU");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index), "ask a GPU");
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
  gemms = make_gemm_plans(index, options);
  attentions = make_attention_plans(index);
}

Tools::~Tools() {
  cudaSetDevice(device);
  cudaStreamSynchronize(stream);
  attentions.reset();  // its library handle knows the stream
  gemms.reset();
  cudaStreamDestroy(stream);
}

OpenedDevice open(int index, const DeviceOptions& options);
OpenedDevice open(int index, const DeviceOptions& options) {
  auto tools = std::make_unique<Tools>(index, options);
  const Stream compute{tools->stream};
  return {std::move(tools), compute};
}

}  // namespace weft::ops::cuda
