// Communicator: the collectives of one group of ranks. Every call starts an operation and returns; see Async.
// All ranks of a group issue the same calls in the same order. Reductions sum in rank order, element by
// element, in the accumulator type of the dtype (bf16 is summed in fp32 and rounded once), so results do not
// depend on timing. A group of one runs the same code; its collectives return at once (see
// self_communicator).
//
// Until an operation has been waited for, or cancel() of its Async has returned (which an unwinding stack
// calls), other ranks may read and write its tensors: the memory under them must outlive the Async.
// Tensors may be strided (ld) and may be empty. A shard may be its own rows of `full`; no other overlap.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/async.hpp"

namespace weft {

enum class ReduceOp { kSum, kMax };

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // in this group
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  // "tp", "dp", "pp.forward.0-1": for messages and traces

  // In place; returns x.
  virtual Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op = ReduceOp::kSum) = 0;
  // `full` [size * n, ...] = the shards [n, ...] in rank order. The forms without an output allocate it from
  // the lane.
  virtual Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) = 0;
  // `shard` [n, ...] = rows [rank * n, (rank + 1) * n) of the sum of every rank's `full` [size * n, ...].
  virtual Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) = 0;
  // Rows of dim 0: send_rows[r] rows go to rank r, receive_rows[r] come from it, both packed in rank order.
  virtual Async<Tensor> all_to_all_into(Lane& lane, const Tensor& send,
                                        const std::vector<std::int64_t>& send_rows, const Tensor& receive,
                                        const std::vector<std::int64_t>& receive_rows) = 0;
  // In place; returns x.
  virtual Async<Tensor> broadcast(Lane& lane, const Tensor& x, int root) = 0;

  // A group of point-to-point messages that progress together. Returns the received tensors, in the order
  // given.
  struct Message {
    int peer;
    Tensor tensor;  // read when sending, written when receiving
  };
  virtual Async<std::vector<Tensor>> send_receive(Lane& lane, const std::vector<Message>& sends,
                                                  const std::vector<Message>& receives) = 0;
  virtual void barrier(Lane& lane) = 0;
  // Collective over this group: ranks with the same colour form a new group, ordered by (key, rank here). A
  // negative colour joins none and gets nullptr.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;
  // Another rank of the run has failed: nobody need wait any longer.
  virtual bool aborted() const { return false; }
  // The bytes this rank has sent through this communicator (counted by shape; meta lanes count too).
  virtual std::uint64_t bytes_sent() const = 0;

  // The results are allocated from the lane; in a group of one the result is the argument itself, no copy.
  Async<Tensor> all_gather(Lane& lane, const Tensor& shard);
  Async<Tensor> reduce_scatter(Lane& lane, const Tensor& full);
};

// The group of one: all operations are done when they return, and copy nothing where input is output.
std::unique_ptr<Communicator> self_communicator(const std::string& name);

// Sees what planned groups are asked for: from it follows how long a step's messages would take.
class PlannedMessages {
 public:
  virtual ~PlannedMessages() = default;
  // An operation has been started in which this rank sends so many bytes; its number.
  virtual std::size_t started(const std::string& group, std::uint64_t bytes) = 0;
  virtual void waited(std::size_t number) = 0;
};
// A group that exists only in the plan: any size and rank, moves nothing, counts bytes. For meta lanes.
// `messages`, if not null, outlives the group.
std::unique_ptr<Communicator> planned_communicator(const std::string& name, int rank, int size,
                                                   PlannedMessages* messages = nullptr);

}  // namespace weft
