#include "comm/local/local_communicator.hpp"

#include <algorithm>
#include <utility>

#include "comm/calls.hpp"
#include "comm/host_operation.hpp"

namespace weft::local {
namespace {

// One rank's part in the exchanges of one call. Holds the tensors until they are its own again.
class LocalOperation : public HostOperation {
 public:
  LocalOperation(std::shared_ptr<Group> group, int rank, std::vector<Tensor> held)
      : group_(std::move(group)), rank_(rank), held_(std::move(held)) {}
  ~LocalOperation() override {
    if (!finished_) leave();  // an exception came between the first exchange and the end of wait()
  }

  void add(std::shared_ptr<Exchange> exchange) { exchanges_.push_back(std::move(exchange)); }

  void wait(Lane& lane) override {
    Time done{};
    for (const auto& exchange : exchanges_) {
      group_->await(rank_, *exchange);
      done = std::max({done, exchange->ended, exchange->due});
    }
    finished_ = true;
    ended(lane, done);
  }
  void cancel() noexcept override {
    group_->world().leave(group_->world_rank(rank_), text() + " was cancelled by an exception");
    leave();
  }
  void dropped() noexcept override {
    group_->world().fail(group_->world_rank(rank_),
                         Error(text() + " was started, but its result was never waited for"));
    leave();
  }

 private:
  std::string text() const {
    if (exchanges_.empty()) return fmt::format("group '{}': an empty operation", group_->name());
    const Exchange& exchange = *exchanges_.front();
    std::size_t own = 0;
    while (exchange.participants[own] != rank_) ++own;
    return group_->describe(exchange, exchange.calls[own]);
  }
  void leave() noexcept {
    for (const auto& exchange : exchanges_) group_->leave(*exchange);
    finished_ = true;
  }

  std::shared_ptr<Group> group_;
  int rank_;
  std::vector<Tensor> held_;
  std::vector<std::shared_ptr<Exchange>> exchanges_;
  bool finished_ = false;
};

// The `count` equal parts of dim 0.
std::vector<View> equal_parts(const Tensor& x, int count) {
  std::vector<View> parts;
  const std::int64_t rows = x.dim(0) / count;
  for (int i = 0; i < count; ++i) parts.emplace_back(x.slice(i * rows, rows));
  return parts;
}

std::vector<View> parts_of(const Tensor& x, const std::vector<std::int64_t>& rows) {
  std::vector<View> parts;
  std::int64_t begin = 0;
  for (const std::int64_t n : rows) {
    parts.emplace_back(x.slice(begin, n));
    begin += n;
  }
  return parts;
}

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
  std::uint64_t bytes_sent() const override { return bytes_; }
  bool aborted() const override { return group_->world().aborted(); }

  Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op) override {
    Call call = make(Kind::kAllReduce, x, calls::all_reduce(who(), x));
    call.op = op;
    call.in = {View(x)};
    return start(lane, std::move(call), x, {x});
  }
  Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) override {
    Call call = make(Kind::kAllGather, shard, calls::all_gather(who(), shard, full));
    call.in = {View(shard)};
    call.out = equal_parts(full, size());
    return start(lane, std::move(call), full, {shard, full});
  }
  Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) override {
    Call call = make(Kind::kReduceScatter, shard, calls::reduce_scatter(who(), full, shard));
    call.in = equal_parts(full, size());
    call.out = {View(shard)};
    return start(lane, std::move(call), shard, {full, shard});
  }
  Async<Tensor> all_to_all_into(Lane& lane, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                                const Tensor& receive,
                                const std::vector<std::int64_t>& receive_rows) override {
    Call call = make(Kind::kAllToAll, send, calls::all_to_all(who(), send, send_rows, receive, receive_rows));
    call.shape.set(0, 1);
    call.send_rows = send_rows;
    call.receive_rows = receive_rows;
    call.in = parts_of(send, send_rows);
    call.out = parts_of(receive, receive_rows);
    return start(lane, std::move(call), receive, {send, receive});
  }
  Async<Tensor> broadcast(Lane& lane, const Tensor& x, int root) override {
    Call call = make(Kind::kBroadcast, x, calls::broadcast(who(), x, root));
    call.root = root;
    call.in = {View(x)};
    return start(lane, std::move(call), x, {x});
  }
  Async<std::vector<Tensor>> send_receive(Lane& lane, const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override;
  void barrier(Lane&) override {
    Call call;
    call.kind = Kind::kBarrier;
    group_->await(rank_, *group_->join(rank_, std::move(call)));
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  calls::Who who() const { return {name(), rank_, size(), DeviceKind::kCpu}; }
  Call make(Kind kind, const Tensor& x, std::uint64_t bytes) {
    Call call;
    call.kind = kind;
    call.dtype = x.dtype();
    call.shape = x.shape();
    call.bytes_sent = bytes;
    return call;
  }
  Async<Tensor> start(const Lane& lane, Call call, const Tensor& result, std::vector<Tensor> held) {
    bytes_ += call.bytes_sent;
    const std::uint64_t bytes = call.bytes_sent > 0 ? call.bytes_sent : result.bytes();
    auto operation = std::make_unique<LocalOperation>(group_, rank_, std::move(held));
    operation->started(lane, *this, name_of(call.kind), bytes);
    operation->add(group_->join(rank_, std::move(call)));
    return Async<Tensor>(result, std::move(operation));
  }

  std::shared_ptr<Group> group_;
  int rank_;
  std::uint64_t bytes_ = 0;
};

Async<std::vector<Tensor>> LocalCommunicator::send_receive(Lane& lane, const std::vector<Message>& sends,
                                                           const std::vector<Message>& receives) {
  bytes_ += calls::send_receive(who(), sends, receives);
  auto operation = std::make_unique<LocalOperation>(group_, rank_, calls::tensors_of(sends, receives));
  operation->started(lane, *this, calls::name_of(sends, receives), calls::bytes_of(sends, receives));
  for (const Message& m : sends) {
    Call call = make(Kind::kSend, m.tensor, m.peer == rank_ ? 0 : m.tensor.bytes());
    call.in = {View(m.tensor)};
    operation->add(group_->join_send(rank_, m.peer, std::move(call)));
  }
  for (const Message& m : receives) {
    Call call = make(Kind::kReceive, m.tensor, 0);
    call.out = {View(m.tensor)};
    operation->add(group_->join_receive(m.peer, rank_, std::move(call)));
  }
  return Async<std::vector<Tensor>>(calls::tensors_of(receives), std::move(operation));
}

std::unique_ptr<Communicator> LocalCommunicator::split(int color, int key, const std::string& name) {
  Call call;
  call.kind = Kind::kSplit;
  call.color = color;
  call.key = key;
  call.split_name = name;
  const std::shared_ptr<Exchange> exchange = group_->join(rank_, std::move(call));
  group_->await(rank_, *exchange);
  if (color < 0) return nullptr;
  const auto& [group, rank] = exchange->split[static_cast<std::size_t>(rank_)];
  return group ? local_communicator(group, rank) : self_communicator(name);
}

}  // namespace

std::unique_ptr<Communicator> local_communicator(std::shared_ptr<Group> group, int rank) {
  if (group->size() == 1) return self_communicator(group->name());
  return std::make_unique<LocalCommunicator>(std::move(group), rank);
}

}  // namespace weft::local
