#include "comm/nccl/nccl_communicator.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "comm/calls.hpp"
#include "core/cuda/check.hpp"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using cuda::check;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI8:
      return ncclInt8;
    case DType::kU8:
      return ncclUint8;
    default:
      fail("NCCL has no type for {}", name_of(dtype));
  }
}

std::string last_error(ncclComm_t comm) {
  const char* text = ncclGetLastError(comm);
  return text == nullptr ? "" : text;
}

cudaStream_t stream_of(const Lane& lane) {
  return static_cast<cudaStream_t>(lane.compute.handle);
}

// Events without timing, used again: a step makes none.
class Events {
 public:
  ~Events() {
    for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  cudaEvent_t take() {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
    return event;
  }
  void give(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// What the groups of one rank share: events, and the watchdog that ends operations which will never end
// themselves.
class RankState {
 public:
  RankState(Communicator& host, int device, const NcclOptions& options)
      : host_(host), device_(device), timeout_(options.timeout) {
    check(cudaMalloc(&scratch_, 512), "take device memory");
    watch_ = std::thread([this] { watch(); });
  }
  ~RankState() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    watch_.join();
    cudaFree(scratch_);
  }
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;

  Events& events() { return events_; }
  void* scratch() const { return scratch_; }  // 512 bytes on the device

  // `who` names the group and this rank of it.
  void add(ncclComm_t comm, std::string who) {
    const std::lock_guard lock(mutex_);
    if (failed_) {  // between its making and now
      ncclCommAbort(comm);
      return;
    }
    comms_.push_back({comm, std::move(who)});
  }
  // Ends a group: in the ordinary way, for which NCCL waits until its operations are done and the other ranks
  // leave too; or, where this rank leaves alone, at once.
  void remove(ncclComm_t comm, bool at_once) {
    {
      const std::lock_guard lock(mutex_);
      const auto at =
          std::find_if(comms_.begin(), comms_.end(), [&](const Group& g) { return g.comm == comm; });
      if (at == comms_.end()) return;  // aborted
      comms_.erase(at);
    }
    // Outside of the lock: meanwhile the watchdog looks after the other groups.
    at_once ? ncclCommAbort(comm) : ncclCommDestroy(comm);
  }

  // An operation has been enqueued; `ended` will be recorded when it is done. `what` names it.
  void started(cudaEvent_t ended, std::string what) {
    const std::lock_guard lock(mutex_);
    running_.push_back({ended, std::move(what), Clock::now()});
  }
  void finished(cudaEvent_t ended) {
    const std::lock_guard lock(mutex_);
    const auto at =
        std::find_if(running_.begin(), running_.end(), [&](const Running& r) { return r.ended == ended; });
    if (at != running_.end()) waited_.push_back(std::move(*at)), running_.erase(at);
  }

  // Throws what the watchdog has found.
  void check_alive() {
    if (!failed_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) throw Aborted("another rank of this run has failed");
    throw Error(failure_);
  }

 private:
  struct Group {
    ncclComm_t comm;
    std::string who;
  };
  struct Running {
    cudaEvent_t ended;
    std::string what;
    Clock::time_point start;
  };

  void watch() {
    cudaSetDevice(device_);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(100), [this] { return done_; })) {
      look();
      if (failed_) return;
    }
  }
  void look() {
    if (host_.aborted()) return end("");
    for (const Group& group : comms_) {
      ncclResult_t state = ncclSuccess;
      if (ncclCommGetAsyncError(group.comm, &state) == ncclSuccess && state != ncclSuccess &&
          state != ncclInProgress)
        return end(nccl_error_text(group.who, "go on", ncclGetErrorString(state), last_error(group.comm)));
    }
    // Operations end in the order of their streams; those waited for may still be under way on the device.
    for (std::deque<Running>* list : {&waited_, &running_}) {
      for (auto r = list->begin(); r != list->end();) {
        const bool over = cudaEventQuery(r->ended) == cudaSuccess;
        if (over && list == &waited_) {
          events_.give(r->ended);
          r = list->erase(r);
          continue;
        }
        if (!over && Clock::now() - r->start > timeout_) {
          return end(fmt::format("{} has not ended within {} s: a rank is missing, or issues other calls",
                                 r->what,
                                 std::chrono::duration_cast<std::chrono::seconds>(timeout_).count()));
        }
        ++r;
      }
    }
  }
  // Every group of this rank is given up: the device goes on without the results, and whoever calls or waits
  // next throws. The other ranks learn of it when this one has left, and do the same.
  void end(std::string failure) {
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
    for (const Group& group : comms_) ncclCommAbort(group.comm);
    comms_.clear();
  }

  Communicator& host_;
  int device_;
  std::chrono::milliseconds timeout_;
  void* scratch_ = nullptr;
  Events events_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::atomic<bool> failed_{false};
  std::string failure_;
  std::vector<Group> comms_;
  std::deque<Running> running_, waited_;
  std::thread watch_;  // last: it uses what stands above
};

class NcclOperation final : public Operation {
 public:
  NcclOperation(std::shared_ptr<RankState> state, cudaEvent_t ended, std::vector<Tensor> held,
                std::string what)
      : state_(std::move(state)), ended_(ended), held_(std::move(held)), what_(std::move(what)) {}

  void wait(Lane& lane) override {
    state_->check_alive();
    check(cudaStreamWaitEvent(stream_of(lane), ended_, 0), "wait for a collective");
    state_->finished(ended_);
  }
  void cancel() noexcept override { state_->finished(ended_); }
  std::string name() const override { return what_; }
  void dropped() noexcept override {
    std::fputs(fmt::format("weft: {} was started, but its result was never waited for\n", what_).c_str(),
               stderr);
    std::_Exit(1);
  }

 private:
  std::shared_ptr<RankState> state_;
  cudaEvent_t ended_;
  std::vector<Tensor> held_;  // the compute stream goes on after `ended_`, so they may be freed after wait()
  std::string what_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& host, std::unique_ptr<Communicator> own, std::shared_ptr<RankState> state,
                   int device)
      : host_(host), own_(std::move(own)), state_(std::move(state)), device_(device) {
    Workers none(1);
    const std::unique_ptr<Arena> arena = Arena::host(1);
    Lane lane{*arena, none, {}};
    ncclUniqueId id{};
    if (rank() == 0) must(ncclGetUniqueId(&id), "make an id");
    host_
        .broadcast(
            lane, Tensor::borrow(id.internal, DType::kI8, {static_cast<std::int64_t>(sizeof id.internal)}), 0)
        .wait(lane);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (nccl_ranks_share_gpus()) {  // the ranks of a GPU must all fit
      config.minCTAs = config.maxCTAs = 1;
      config.cgaClusterSize = 0;
    }
    must(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config), "join");
    int low = 0, high = 0;
    check(cudaDeviceGetStreamPriorityRange(&low, &high), "ask for priorities");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, high), "make a stream");
    state_->add(comm_, full_name());
  }
  ~NcclCommunicator() override {
    cudaSetDevice(device_);
    state_->remove(comm_, std::uncaught_exceptions() > 0);
    cudaStreamDestroy(stream_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const std::string& name() const override { return host_.name(); }
  std::uint64_t bytes_sent() const override { return bytes_ + host_.bytes_sent(); }
  bool aborted() const override { return host_.aborted(); }
  void barrier(Lane&) override {
    state_->check_alive();
    OnHost host;
    host_.barrier(host.lane);
  }

  Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op) override {
    if (on_host(x)) return host().all_reduce(lane, x, op);
    const std::uint64_t sent = calls::all_reduce(who(), x);
    return start(lane, "all_reduce", sent, x, {x}, [&] {
      for_blocks(x, [&](std::byte* at, std::size_t count) {
        must(ncclAllReduce(at, at, count, type_of(x.dtype()), op == ReduceOp::kMax ? ncclMax : ncclSum, comm_,
                           stream_),
             "all_reduce");
      });
    });
  }
  Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) override {
    if (on_host(shard)) return host().all_gather_into(lane, shard, full);
    const std::uint64_t sent = calls::all_gather(who(), shard, full);
    return start(lane, "all_gather", sent, full, {shard, full}, [&] {
      if (shard.contiguous() && full.contiguous()) {
        must(ncclAllGather(shard.raw(), full.raw(), elems(shard), type_of(shard.dtype()), comm_, stream_),
             "all_gather");
        return;
      }
      for (int r = 0; r < size(); ++r) {  // part by part, as their rows lie apart
        for_pairs(shard, part_of(full, r), [&](std::byte* mine, std::byte* theirs, std::size_t count) {
          must(ncclBroadcast(mine, theirs, count, type_of(shard.dtype()), r, comm_, stream_), "all_gather");
        });
      }
    });
  }
  Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) override {
    if (on_host(shard)) return host().reduce_scatter_into(lane, full, shard);
    const std::uint64_t sent = calls::reduce_scatter(who(), full, shard);
    return start(lane, "reduce_scatter", sent, shard, {full, shard}, [&] {
      if (shard.contiguous() && full.contiguous()) {
        must(ncclReduceScatter(full.raw(), shard.raw(), elems(shard), type_of(shard.dtype()), ncclSum, comm_,
                               stream_),
             "reduce_scatter");
        return;
      }
      for (int r = 0; r < size(); ++r) {
        for_pairs(part_of(full, r), shard, [&](std::byte* from, std::byte* to, std::size_t count) {
          must(ncclReduce(from, to, count, type_of(shard.dtype()), ncclSum, r, comm_, stream_),
               "reduce_scatter");
        });
      }
    });
  }
  Async<Tensor> all_to_all_into(Lane& lane, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                                const Tensor& receive,
                                const std::vector<std::int64_t>& receive_rows) override {
    if (on_host(send)) return host().all_to_all_into(lane, send, send_rows, receive, receive_rows);
    const std::uint64_t sent = calls::all_to_all(who(), send, send_rows, receive, receive_rows);
    return start(lane, "all_to_all", sent, receive, {send, receive}, [&] {
      std::int64_t from = 0, to = 0;
      for (int r = 0; r < size(); ++r) {
        const auto i = static_cast<std::size_t>(r);
        for_blocks(send.slice(from, send_rows[i]), [&](std::byte* at, std::size_t count) {
          must(ncclSend(at, count, type_of(send.dtype()), r, comm_, stream_), "all_to_all");
        });
        for_blocks(receive.slice(to, receive_rows[i]), [&](std::byte* at, std::size_t count) {
          must(ncclRecv(at, count, type_of(receive.dtype()), r, comm_, stream_), "all_to_all");
        });
        from += send_rows[i];
        to += receive_rows[i];
      }
    });
  }
  Async<Tensor> broadcast(Lane& lane, const Tensor& x, int root) override {
    if (on_host(x)) return host().broadcast(lane, x, root);
    const std::uint64_t sent = calls::broadcast(who(), x, root);
    return start(lane, "broadcast", sent, x, {x}, [&] {
      for_blocks(x, [&](std::byte* at, std::size_t count) {
        must(ncclBroadcast(at, at, count, type_of(x.dtype()), root, comm_, stream_), "broadcast");
      });
    });
  }
  Async<std::vector<Tensor>> send_receive(Lane& lane, const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    const std::uint64_t sent = calls::send_receive(who(), sends, receives);
    const std::vector<Tensor> received = calls::tensors_of(receives),
                              held = calls::tensors_of(sends, receives);
    return start(lane, calls::name_of(sends, receives), sent, received, held, [&] {
      for (const Message& m : sends) {
        for_blocks(m.tensor, [&](std::byte* at, std::size_t count) {
          must(ncclSend(at, count, type_of(m.tensor.dtype()), m.peer, comm_, stream_), "send");
        });
      }
      for (const Message& m : receives) {
        for_blocks(m.tensor, [&](std::byte* at, std::size_t count) {
          must(ncclRecv(at, count, type_of(m.tensor.dtype()), m.peer, comm_, stream_), "receive");
        });
      }
    });
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    state_->check_alive();
    std::unique_ptr<Communicator> group = host_.split(color, key, name);
    std::unique_ptr<NcclCommunicator> made;
    if (group != nullptr && group->size() > 1) {
      Communicator& host = *group;
      made = std::make_unique<NcclCommunicator>(host, std::move(group), state_, device_);
    }
    OnHost host;
    host_.barrier(host.lane);  // see connect()
    if (made == nullptr) return group;
    made->connect();
    return made;
  }

  // NCCL connects two ranks when they first talk, and then the call waits for the other rank's: a rank that
  // asks early for a message would wait for one that asks early for another. So all talk once, now. None does
  // while another still takes or frees memory (as joining does): that waits for all kernels of the process,
  // those of ranks that share its GPU too, and keeps others from starting what these wait for.
  void connect() const {
    state_->check_alive();  // a group of a rank that has failed is none
    OnHost host;
    auto* const here = static_cast<char*>(state_->scratch());
    must(ncclGroupStart(), "connect");
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank() || size() > kAllTalk) continue;
      must(ncclSend(here, 1, ncclInt8, peer, comm_, stream_), "connect");
      must(ncclRecv(here + 256, 1, ncclInt8, peer, comm_, stream_), "connect");
    }
    must(ncclGroupEnd(), "connect");
    check(cudaStreamSynchronize(stream_), "connect ranks");
    host_.barrier(host.lane);
    must(ncclAllReduce(here, here, 1, ncclFloat32, ncclSum, comm_, stream_), "connect");
    check(cudaStreamSynchronize(stream_), "connect ranks");
    state_->check_alive();
  }

 private:
  struct OnHost {
    Workers none{1};
    std::unique_ptr<Arena> arena = Arena::host(1);
    Lane lane{*arena, none, {}};
  };

  static constexpr int kAllTalk =
      2;  // messages between two go over groups of two; larger ones have collectives only
  static bool on_host(const Tensor& x) { return x.defined() && x.device().kind == DeviceKind::kCpu; }
  static std::size_t elems(const Tensor& x) { return static_cast<std::size_t>(x.elems()); }
  calls::Who who() const { return {name(), rank(), size(), DeviceKind::kCuda}; }
  Tensor part_of(const Tensor& full, int r) const {
    const std::int64_t rows = full.dim(0) / size();
    return full.slice(r * rows, rows);
  }
  void must(ncclResult_t status, const char* what) const {
    if (status == ncclSuccess) return;
    state_->check_alive();
    throw Error(nccl_error_text(full_name(), what, ncclGetErrorString(status), last_error(comm_)));
  }
  std::string full_name() const { return fmt::format("group '{}', rank {} of {}", name(), rank(), size()); }
  // For what lies in host memory.
  Communicator& host() {
    state_->check_alive();
    return host_;
  }

  // Calls body(first byte, elements) on the contiguous blocks of a tensor.
  template <class Body>
  static void for_blocks(const Tensor& x, const Body& body) {
    if (x.elems() == 0) return;
    if (x.contiguous()) return body(x.raw(), elems(x));
    const auto stride = static_cast<std::int64_t>(bytes_of(x.dtype())) * x.ld();
    for (std::int64_t r = 0; r < x.rows(); ++r)
      body(x.raw() + r * stride, static_cast<std::size_t>(x.columns()));
  }
  // The same on blocks of two tensors of one shape.
  template <class Body>
  static void for_pairs(const Tensor& a, const Tensor& b, const Body& body) {
    if (a.elems() == 0) return;
    if (a.contiguous() && b.contiguous()) return body(a.raw(), b.raw(), elems(a));
    const auto size = static_cast<std::int64_t>(bytes_of(a.dtype()));
    for (std::int64_t r = 0; r < a.rows(); ++r) {
      body(a.raw() + r * size * a.ld(), b.raw() + r * size * b.ld(), static_cast<std::size_t>(a.columns()));
    }
  }

  // Ranks that are threads of one process and share a GPU must not run ahead of it: a launch that finds the
  // driver's queue full keeps the driver's lock until the GPU goes on, and the GPU may be waiting for a rank
  // that wants the lock.
  void finish_compute(Lane& lane) {
    while (cudaStreamQuery(stream_of(lane)) == cudaErrorNotReady) {
      state_->check_alive();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  template <class T, class Enqueue>
  Async<T> start(Lane& lane, const char* call, std::uint64_t sent, const T& result, std::vector<Tensor> held,
                 const Enqueue& enqueue) {
    bytes_ += sent;
    state_->check_alive();
    if (nccl_ranks_share_gpus()) finish_compute(lane);
    const cudaEvent_t begun = state_->events().take(), ended = state_->events().take();
    check(cudaEventRecord(begun, stream_of(lane)), "record an event");
    check(cudaStreamWaitEvent(stream_, begun, 0), "order a collective");
    state_->events().give(begun);
    {
      const TraceScope traced(
          lane.tools, call,
          [&] {
            const std::uint64_t bytes = sent > 0 || held.empty() ? sent : held.front().bytes();
            TracedOperation what = on_row(TraceRow::kGroup, call, static_cast<double>(bytes));
            what.group = this->name();
            return what;
          },
          Stream{stream_});
      must(ncclGroupStart(), call);
      enqueue();
      must(ncclGroupEnd(), call);
    }
    check(cudaEventRecord(ended, stream_), "record an event");
    std::string what = fmt::format("{}: {} {}", full_name(), call, sequence_++);
    state_->started(ended, what);
    return Async<T>(result, std::make_unique<NcclOperation>(state_, ended, std::move(held), std::move(what)));
  }

  Communicator& host_;
  std::unique_ptr<Communicator> own_;  // host_, where this group was split off
  std::shared_ptr<RankState> state_;
  int device_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::uint64_t bytes_ = 0, sequence_ = 0;
};

}  // namespace

GpuLibrary nccl_library() {
  const auto parts = [](int v) { return std::array<int, 3>{v / 10000, v / 100 % 100, v % 100}; };
  int version = 0;
  ncclGetVersion(&version);
  return {"NCCL", "libnccl.so.2", parts(NCCL_VERSION_CODE), parts(version)};
}

std::unique_ptr<Communicator> nccl_communicator(Communicator& host, Lane& lane, const NcclOptions& options) {
  if (host.size() == 1) return host.split(0, 0, host.name());
  const int device = lane.device().index;
  check(cudaSetDevice(device), "use a GPU");
  auto world = std::make_unique<NcclCommunicator>(host, nullptr,
                                                  std::make_shared<RankState>(host, device, options), device);
  world->barrier(lane);
  world->connect();
  return world;
}

}  // namespace weft
