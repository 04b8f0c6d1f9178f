// A communicator over which nothing moves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace weft::overlap {

// A rank of `size` whose collectives are over when they start, and move nothing.
class SilentCommunicator final : public Communicator {
 public:
  SilentCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  std::uint64_t bytes_sent() const override { return 0; }
  void barrier(Lane&) override {}
  Async<Tensor> all_reduce(Lane&, const Tensor& x, ReduceOp) override { return Async<Tensor>(x); }
  Async<Tensor> all_gather_into(Lane&, const Tensor&, const Tensor& full) override {
    return Async<Tensor>(full);
  }
  Async<Tensor> reduce_scatter_into(Lane&, const Tensor&, const Tensor& shard) override {
    return Async<Tensor>(shard);
  }
  Async<Tensor> all_to_all_into(Lane&, const Tensor&, const std::vector<std::int64_t>&, const Tensor& receive,
                                const std::vector<std::int64_t>&) override {
    return Async<Tensor>(receive);
  }
  Async<Tensor> broadcast(Lane&, const Tensor& x, int) override { return Async<Tensor>(x); }
  Async<std::vector<Tensor>> send_receive(Lane&, const std::vector<Message>&,
                                          const std::vector<Message>&) override {
    return Async<std::vector<Tensor>>(std::vector<Tensor>());
  }
  std::unique_ptr<Communicator> split(int, int, const std::string&) override { return nullptr; }

 private:
  int rank_, size_;
  std::string name_ = "silent";
};

}  // namespace weft::overlap
