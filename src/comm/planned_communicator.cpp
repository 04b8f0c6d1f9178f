#include <utility>

#include "comm/calls.hpp"
#include "core/log.hpp"

namespace weft {
namespace {

// Holds the tensors as long as a real operation would, so that the arena sees the same order of releases.
class PlannedOperation : public Operation {
 public:
  PlannedOperation(std::vector<Tensor> held, std::shared_ptr<std::string> fault, std::string what,
                   PlannedMessages* messages, std::size_t number)
      : held_(std::move(held)),
        fault_(std::move(fault)),
        what_(std::move(what)),
        messages_(messages),
        number_(number) {}

  void wait(Lane&) override {
    held_.clear();
    if (messages_ != nullptr) messages_->waited(number_);
  }
  void cancel() noexcept override {}
  // There is no run to stop: the next call on this group fails.
  void dropped() noexcept override {
    *fault_ = what_ + " was started, but its result was never waited for";
    log_warn("{}", *fault_);
  }

 private:
  std::vector<Tensor> held_;
  std::shared_ptr<std::string> fault_;
  std::string what_;
  PlannedMessages* messages_;
  std::size_t number_;
};

class PlannedCommunicator : public Communicator {
 public:
  PlannedCommunicator(const std::string& name, int rank, int size, PlannedMessages* messages)
      : name_(name), rank_(rank), size_(size), messages_(messages) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  std::uint64_t bytes_sent() const override { return bytes_; }
  void barrier(Lane&) override { check_fault(); }

  Async<Tensor> all_reduce(Lane&, const Tensor& x, ReduceOp) override {
    const std::uint64_t bytes = calls::all_reduce(who(), x);
    return start("all_reduce", bytes, x, {x});
  }
  Async<Tensor> all_gather_into(Lane&, const Tensor& shard, const Tensor& full) override {
    const std::uint64_t bytes = calls::all_gather(who(), shard, full);
    return start("all_gather", bytes, full, {shard, full});
  }
  Async<Tensor> reduce_scatter_into(Lane&, const Tensor& full, const Tensor& shard) override {
    const std::uint64_t bytes = calls::reduce_scatter(who(), full, shard);
    return start("reduce_scatter", bytes, shard, {full, shard});
  }
  Async<Tensor> all_to_all_into(Lane&, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                                const Tensor& receive,
                                const std::vector<std::int64_t>& receive_rows) override {
    const std::uint64_t bytes = calls::all_to_all(who(), send, send_rows, receive, receive_rows);
    return start("all_to_all", bytes, receive, {send, receive});
  }
  Async<Tensor> broadcast(Lane&, const Tensor& x, int root) override {
    const std::uint64_t bytes = calls::broadcast(who(), x, root);
    return start("broadcast", bytes, x, {x});
  }
  Async<std::vector<Tensor>> send_receive(Lane&, const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    const std::uint64_t bytes = calls::send_receive(who(), sends, receives);
    return start("send_receive", bytes, calls::tensors_of(receives), calls::tensors_of(sends, receives));
  }
  std::unique_ptr<Communicator> split(int, int, const std::string& name) override {
    WEFT_CHECK(
        false,
        "planned group '{}' cannot be split into '{}': who else joins is not known; make a planned group",
        name_, name);
    return nullptr;
  }

 private:
  calls::Who who() const {
    check_fault();
    return {name_, rank_, size_, DeviceKind::kMeta};
  }
  void check_fault() const {
    if (!fault_->empty()) throw Error(*fault_);
  }
  template <class T>
  Async<T> start(const char* call, std::uint64_t bytes, T result, std::vector<Tensor> held) {
    bytes_ += bytes;
    const std::size_t number = messages_ != nullptr ? messages_->started(name_, bytes) : 0;
    return Async<T>(std::move(result), std::make_unique<PlannedOperation>(
                                           std::move(held), fault_,
                                           fmt::format("group '{}': {}", name_, call), messages_, number));
  }

  std::string name_;
  int rank_, size_;
  PlannedMessages* messages_;
  std::uint64_t bytes_ = 0;
  std::shared_ptr<std::string> fault_ = std::make_shared<std::string>();
};

}  // namespace

std::unique_ptr<Communicator> planned_communicator(const std::string& name, int rank, int size,
                                                   PlannedMessages* messages) {
  WEFT_CHECK(size >= 1 && rank >= 0 && rank < size, "planned group '{}': rank {} of {}", name, rank, size);
  if (size == 1) return self_communicator(name);
  return std::make_unique<PlannedCommunicator>(name, rank, size, messages);
}

}  // namespace weft
