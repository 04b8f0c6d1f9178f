// One rank of a sharded module under test: its border, its parameters cut from global ones, and what it takes
// to compare with the same module on one rank. And communicators that watch or spoil what goes through them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/chunked_border.hpp"
#include "nn/linear.hpp"
#include "nn/overlapped_linear.hpp"
#include "support/rank.hpp"

namespace weft::testing {

// A communicator that hands on to another.
class PassingCommunicator : public Communicator {
 public:
  explicit PassingCommunicator(Communicator& to) : to_(to) {}
  int rank() const override { return to_.rank(); }
  int size() const override { return to_.size(); }
  const std::string& name() const override { return to_.name(); }
  Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op) override {
    return to_.all_reduce(lane, x, op);
  }
  Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) override {
    return to_.all_gather_into(lane, shard, full);
  }
  Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) override {
    return to_.reduce_scatter_into(lane, full, shard);
  }
  Async<Tensor> all_to_all_into(Lane& lane, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                                const Tensor& receive,
                                const std::vector<std::int64_t>& receive_rows) override {
    return to_.all_to_all_into(lane, send, send_rows, receive, receive_rows);
  }
  Async<Tensor> broadcast(Lane& lane, const Tensor& x, int root) override {
    return to_.broadcast(lane, x, root);
  }
  Async<std::vector<Tensor>> send_receive(Lane& lane, const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    return to_.send_receive(lane, sends, receives);
  }
  void barrier(Lane& lane) override { to_.barrier(lane); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    return to_.split(color, key, name);
  }
  std::uint64_t bytes_sent() const override { return to_.bytes_sent(); }

 protected:
  Communicator& to_;
};

// What is wanted of a sharded module.
struct Form {
  bool sequence_parallel = false;
  int chunks = 0;  // 0: the plain linears
  DType dtype = DType::kF64;
  // Sizes that are cut are odd multiples of this: the tensor-parallel size of the run that is compared, so
  // that the one-rank run has the same sizes.
  std::int64_t unit = 1;
};

// Where this rank's part of a global tensor lies.
enum class Cut { kWhole, kRows, kColumns };

class ShardedRank {
 public:
  // Modules communicate through `tp`; what is compared is gathered through `results`, the same ranks.
  ShardedRank(Lane& lane, Communicator& tp, Communicator& results, const Form& form);

  Lane& lane() { return lane_; }
  Communicator& tp() { return tp_; }
  const Form& form() const { return form_; }
  const nn::TensorParallelBorder& border() const;
  Cut outside() const { return form_.sequence_parallel ? Cut::kRows : Cut::kWhole; }

  // This rank's part of a random global tensor, a function of the seed.
  Tensor part(const Shape& global, Cut cut, std::uint64_t seed);
  // The global tensor of these parts. Of a whole one, which must be the same on every rank, rank 0's; NaN on
  // a rank whose own differs.
  std::vector<double> join(const Tensor& part, const Shape& global, Cut cut);

  // A parameter of random values: logical tensors of the same columns, one below the other; `cut` −1: whole.
  struct Piece {
    std::string name;
    std::int64_t rows;
  };
  const Param& param(const std::string& name, const std::vector<Piece>& pieces, std::int64_t columns,
                     int cut);
  const Param& vector(const std::string& name, std::int64_t size) {
    return param(name, {{name, size}}, 0, -1);
  }
  std::unique_ptr<nn::Linear> column(const std::vector<Piece>& pieces, std::int64_t in, bool bias);
  std::unique_ptr<nn::Linear> row(const std::string& name, std::int64_t out, std::int64_t in);

  Microbatch& begin();  // a new step of one microbatch
  void set_batch(MicrobatchData batch) { batch_ = std::move(batch); }
  // Runs the weight gradients that are left and gathers all: cut ones from their ranks; whole ones are summed
  // over the ranks under sequence parallel, where each has seen its own tokens, and equal on all otherwise.
  Gradients gradients();
  const ParamSet& params() const { return params_; }

 private:
  Lane& lane_;
  Communicator &tp_, &results_;
  Form form_;
  nn::ReplicatedBorder replicated_;
  nn::SequenceParallelBorder sequence_parallel_;
  std::unique_ptr<nn::ChunkedBorder> chunked_;
  ParamSet params_;
  MicrobatchData batch_;
  Microbatch mb_;
};

}  // namespace weft::testing
