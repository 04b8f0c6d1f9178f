#include "ops/cuda/tools.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>

namespace weft::ops::cuda {

Staging::~Staging() {
  for (Slot& slot : slots_) {
    if (slot.copied == nullptr) continue;
    cudaEventSynchronize(slot.copied);
    cudaEventDestroy(slot.copied);
  }
  cudaFreeHost(memory_);
}

void Staging::grow(std::size_t bytes) {
  for (Slot& slot : slots_) {
    if (slot.copied == nullptr) {
      check(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming), "make an event");
    }
    check(cudaEventSynchronize(slot.copied), "wait for an upload");
  }
  if (memory_ != nullptr) check(cudaFreeHost(memory_), "free pinned memory");
  memory_ = nullptr;
  bytes_ = (std::max<std::size_t>(bytes, 4096) + 255) / 256 * 256;
  check(cudaMallocHost(&memory_, kSlots * bytes_), "take pinned memory");
  for (std::size_t i = 0; i < kSlots; ++i) slots_[i].memory = static_cast<std::byte*>(memory_) + i * bytes_;
}

void Staging::upload(cudaStream_t stream, const void* from, void* to, std::size_t bytes) {
  if (bytes > bytes_) grow(bytes);
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  check(cudaEventSynchronize(slot.copied), "wait for an upload");
  std::memcpy(slot.memory, from, bytes);
  check(cudaMemcpyAsync(to, slot.memory, bytes, cudaMemcpyHostToDevice, stream), "upload");
  check(cudaEventRecord(slot.copied, stream), "record an event");
}

Trace::~Trace() {
  if (start_ != nullptr) cudaEventDestroy(start_);
  for (const Entry& entry : entries_) {
    cudaEventDestroy(entry.begin);
    if (entry.end != nullptr) cudaEventDestroy(entry.end);
  }
}

DeviceTools::HostTime Trace::start(cudaStream_t stream) {
  using Clock = std::chrono::steady_clock;
  check(cudaEventCreate(&start_), "make an event");
  check(cudaStreamSynchronize(stream), "wait for the device");
  // The stream is empty, so the event comes between these two times, which are microseconds apart.
  const Clock::time_point before = Clock::now();
  check(cudaEventRecord(start_, stream), "record an event");
  check(cudaEventSynchronize(start_), "wait for an event");
  return before + (Clock::now() - before) / 2;
}

std::size_t Trace::begin(cudaStream_t stream, TracedOperation what) {
  Entry& entry = entries_.emplace_back(Entry{std::move(what)});
  check(cudaEventCreate(&entry.begin), "make an event");
  check(cudaEventRecord(entry.begin, stream), "record an event");
  return entries_.size() - 1;
}

void Trace::end(cudaStream_t stream, std::size_t which) {
  // Called by a destructor: an error shows where the next call finds it.
  Entry& entry = entries_[which];
  if (cudaEventCreate(&entry.end) == cudaSuccess) cudaEventRecord(entry.end, stream);
}

std::vector<TracedOperation> Trace::results() {
  std::vector<TracedOperation> all;
  for (const Entry& entry : entries_) {
    // Both from one start: what lies within another operation does so after rounding too.
    float begin = 0, end = 0;
    check(cudaEventSynchronize(entry.end), "wait for a trace");
    check(cudaEventElapsedTime(&begin, start_, entry.begin), "read a trace");
    check(cudaEventElapsedTime(&end, start_, entry.end), "read a trace");
    all.push_back(entry.what);
    all.back().start = 1e3 * static_cast<double>(begin);
    all.back().end = 1e3 * static_cast<double>(end);
  }
  return all;
}

void Tools::trace(bool on) {
  tracing_ = on;
  tracing = on ? std::make_unique<Trace>() : nullptr;
  seen_.clear();
  if (on) began_ = tracing->start(stream);
}

std::vector<TracedOperation> Tools::traced() {
  std::vector<TracedOperation> all = seen_;
  if (tracing == nullptr) return all;
  std::vector<TracedOperation> on_device = tracing->results();
  std::move(on_device.begin(), on_device.end(), std::back_inserter(all));
  return all;
}

namespace {

class Graph final : public RecordedWork {
 public:
  Graph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    check(cudaGraphInstantiate(&executable_, graph, 0), "make recorded work ready");
    check(cudaGraphUpload(executable_, stream), "bring recorded work to the device");
  }
  ~Graph() override { cudaGraphExecDestroy(executable_); }
  void replay() override { check(cudaGraphLaunch(executable_, stream_), "repeat recorded work"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<RecordedWork> Tools::record(const std::function<void()>& work) {
  struct Recording {
    explicit Recording(cudaStream_t on) : stream(on) {
      // Other threads may go on talking to the device.
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "record work");
    }
    ~Recording() {  // work that throws leaves the stream as it was
      if (!ended) cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
    }
    cudaStream_t stream;
    cudaGraph_t graph = nullptr;
    bool ended = false;
  } recording(stream);
  work();
  recording.ended = true;
  check(cudaStreamEndCapture(stream, &recording.graph), "record work");
  return std::make_unique<Graph>(recording.graph, stream);
}

Tools::Tools(int index, const DeviceOptions& options) : device(index) {
  check(cudaSetDevice(index), "use a GPU");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index), "ask a GPU");
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "ask a GPU");
  clusters = major >= 9;
#ifdef WEFT_CUDA_HOPPER
  if (major == 9) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                           &found),
          "ask the driver");
    if (found == cudaDriverEntryPointSuccess)
      encode_tensor_map = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }
#endif
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
