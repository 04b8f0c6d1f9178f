#include "comm/calls.hpp"
#include "comm/view.hpp"

namespace weft {
namespace {

class SelfCommunicator : public Communicator {
 public:
  explicit SelfCommunicator(const std::string& name) : name_(name) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return name_; }
  std::uint64_t bytes_sent() const override { return 0; }
  void barrier(Lane&) override {}

  Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp) override {
    calls::all_reduce(who(lane), x);
    return Async<Tensor>(x);
  }
  Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) override {
    calls::all_gather(who(lane), shard, full);
    copy(full, shard);
    return Async<Tensor>(full);
  }
  Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) override {
    calls::reduce_scatter(who(lane), full, shard);
    copy(shard, full);
    return Async<Tensor>(shard);
  }
  Async<Tensor> all_to_all_into(Lane& lane, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                                const Tensor& receive,
                                const std::vector<std::int64_t>& receive_rows) override {
    calls::all_to_all(who(lane), send, send_rows, receive, receive_rows);
    WEFT_CHECK(send_rows == receive_rows, "group '{}': all_to_all sends {} rows to itself and receives {}",
               name_, send_rows[0], receive_rows[0]);
    copy(receive, send);
    return Async<Tensor>(receive);
  }
  Async<Tensor> broadcast(Lane& lane, const Tensor& x, int root) override {
    calls::broadcast(who(lane), x, root);
    return Async<Tensor>(x);
  }
  Async<std::vector<Tensor>> send_receive(Lane& lane, const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override;
  std::unique_ptr<Communicator> split(int color, int, const std::string& name) override {
    return color < 0 ? nullptr : self_communicator(name);
  }

 private:
  calls::Who who(const Lane& lane) const { return {name_, 0, 1, lane.device().kind}; }
  void copy(const Tensor& to, const Tensor& from) const {
    if (to.device().kind == DeviceKind::kMeta || to.raw() == from.raw()) return;
    WEFT_CHECK(to.device().kind == DeviceKind::kCpu, "group '{}' of one rank copies in host memory only",
               name_);
    copy_view(View(to), View(from), bytes_of(to.dtype()));
  }

  std::string name_;
};

Async<std::vector<Tensor>> SelfCommunicator::send_receive(Lane& lane, const std::vector<Message>& sends,
                                                          const std::vector<Message>& receives) {
  calls::send_receive(who(lane), sends, receives);
  WEFT_CHECK(sends.size() == receives.size(),
             "group '{}' of one rank: {} messages to itself, but {} received", name_, sends.size(),
             receives.size());
  std::vector<Tensor> received;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const Tensor &from = sends[i].tensor, &to = receives[i].tensor;
    WEFT_CHECK(from.dtype() == to.dtype() && from.shape() == to.shape(),
               "group '{}': {} {} received as {} {}", name_, name_of(from.dtype()), to_string(from.shape()),
               name_of(to.dtype()), to_string(to.shape()));
    copy(to, from);
    received.push_back(to);
  }
  return Async<std::vector<Tensor>>(std::move(received));
}

}  // namespace

std::unique_ptr<Communicator> self_communicator(const std::string& name) {
  return std::make_unique<SelfCommunicator>(name);
}

}  // namespace weft
