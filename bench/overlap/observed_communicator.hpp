// A communicator that hands everything on, and in its data-parallel group notes or leaves out what moves
// parameters and gradients.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"

namespace weft::overlap {

struct Traffic {
  struct Started {
    std::chrono::steady_clock::time_point when;
    std::uint64_t sent_bytes, full_bytes;  // of this rank; of the whole bucket
  };
  // Left out: started and noted, but over at once, and nothing moves.
  bool without_reductions = false, without_gathers = false;
  std::vector<Started> reductions, gathers;
};

class ObservedCommunicator final : public Communicator {
 public:
  ObservedCommunicator(Communicator& inner, Traffic& traffic, bool watched)
      : inner_(&inner), traffic_(traffic), watched_(watched) {}
  ObservedCommunicator(std::unique_ptr<Communicator> inner, Traffic& traffic, bool watched)
      : own_(std::move(inner)), inner_(own_.get()), traffic_(traffic), watched_(watched) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  std::uint64_t bytes_sent() const override { return inner_->bytes_sent(); }
  void barrier(Lane& lane) override { inner_->barrier(lane); }

  Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op) override {
    // Statistics are fp64, and always move.
    if (watched_ && x.dtype() != DType::kF64) {
      note(traffic_.reductions, 2 * (size() - 1) * x.bytes() / size(), x.bytes());
      if (traffic_.without_reductions) return Async<Tensor>(x);
    }
    return inner_->all_reduce(lane, x, op);
  }
  Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) override {
    if (watched_) {
      note(traffic_.gathers, (size() - 1) * shard.bytes(), full.bytes());
      if (traffic_.without_gathers) return Async<Tensor>(full);
    }
    return inner_->all_gather_into(lane, shard, full);
  }
  Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) override {
    if (watched_) {
      note(traffic_.reductions, (size() - 1) * shard.bytes(), full.bytes());
      if (traffic_.without_reductions) return Async<Tensor>(shard);
    }
    return inner_->reduce_scatter_into(lane, full, shard);
  }
  Async<Tensor> all_to_all_into(Lane& lane, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                                const Tensor& receive,
                                const std::vector<std::int64_t>& receive_rows) override {
    return inner_->all_to_all_into(lane, send, send_rows, receive, receive_rows);
  }
  Async<Tensor> broadcast(Lane& lane, const Tensor& x, int root) override {
    return inner_->broadcast(lane, x, root);
  }
  Async<std::vector<Tensor>> send_receive(Lane& lane, const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    return inner_->send_receive(lane, sends, receives);
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    std::unique_ptr<Communicator> part = inner_->split(color, key, name);
    if (part == nullptr) return nullptr;
    return std::make_unique<ObservedCommunicator>(std::move(part), traffic_, name == "dp");
  }

 private:
  static void note(std::vector<Traffic::Started>& list, std::uint64_t sent, std::uint64_t full) {
    list.push_back({std::chrono::steady_clock::now(), sent, full});
  }

  std::unique_ptr<Communicator> own_;
  Communicator* inner_;
  Traffic& traffic_;
  bool watched_;
};

}  // namespace weft::overlap
