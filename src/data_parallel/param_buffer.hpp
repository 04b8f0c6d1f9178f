// ParamBuffer: the flat memory of a rank's parameters and gradients, cut into buckets that are reduced over
// the data-parallel group as soon as their last gradient has arrived.
//
// Parameters lie in reverse order of the forward pass, so the first bucket to fill is the first in memory (Li
// et al. 2020). A tied parameter has a gradient but no weight of its own. Frozen parameters lie past all
// buckets, whole on every rank and in the compute dtype alone: gradients, norm and optimizer never meet them.
//
// Each rank owns the part of every bucket that it updates: all of it, or with `distributed` an equal slice,
// whatever parameters lie there (ZeRO stage 1, Rajbhandari et al. 2020): gradients are reduce-scattered to
// their owners, and updated weights gathered from them, bucket by bucket, while the next forward pass has
// begun. States (see LogicalTensor) are like frozen parameters, in memory of their own.
//
// Dense parameters and those of experts have a buffer each: other ranks hold the same ones. What a rank owns
// has one order, that of `pieces`; tensors of a number for each owned element (master
// weights, moments) are flat in it: [owned_elems].
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "comm/communicator.hpp"
#include "nn/gated.hpp"
#include "nn/param.hpp"

namespace weft {

struct ParamBufferOptions {
  DType dtype = DType::kF32;               // of the weights; gradients are accumulator_of(dtype)
  std::int64_t bucket_elems = 40'000'000;  // a bucket closes when it holds this many (--ddp-bucket-size)
  bool overlap = true;                     // reduce a bucket when it is full; else all at the end of the step
  bool gradients = true;                   // false: weights only (generation)
  bool distributed = false;                // every rank owns a slice of each bucket; else everything
  bool experts = false;                    // of the set's parameters those of experts, else all others
};

class ParamBuffer final : public GradSink, public nn::WeightGate {
 public:
  // Takes the memory from the lane and binds every parameter of the set (see `experts`) to it. Contents are
  // undefined until initialised or loaded (padding between parameters is zero). `dp` and `params` outlive the
  // buffer.
  ParamBuffer(Lane& lane, ParamSet& params, Communicator& dp, const ParamBufferOptions& options);

  struct Slot {
    Param* param;
    std::int64_t offset, elems;  // in the flat weights or gradients
  };
  // Slots of parameters that are trained and own their weight, in memory order; offsets are the same in
  // weights(), gradients() and every full tensor like them.
  const std::vector<Slot>& slots() const { return slots_; }
  // Those that are frozen and own their weight: offsets in weights() alone.
  const std::vector<Slot>& frozen() const { return frozen_; }
  // States: their memory is param->weight() alone.
  const std::vector<Slot>& states() const { return states_; }
  const Tensor& weights() const { return weights_; }  // [elems + frozen], compute dtype
  // [elems + tied], accumulator type
  const Tensor& gradients() const { return gradients_; }
  std::int64_t elems() const { return elems_; }
  // The piece of a full tensor [elems] that belongs to a slot, in the parameter's shape.
  static Tensor piece(const Tensor& full, const Slot& slot);

  // --- what this rank owns
  bool distributed() const { return distributed_; }
  struct Piece {
    Param* param;
    std::int64_t in_param;  // first element, of the parameter
    std::int64_t elems;
    std::int64_t offset;  // in weights() and gradients()
    std::int64_t owned;   // in a flat tensor of what is owned
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  std::int64_t owned_elems() const { return owned_elems_; }
  struct Range {
    std::int64_t offset = 0, elems = 0;  // in weights() and gradients()
  };
  // The part of rows [row, row + rows) of a parameter that this rank owns.
  Range owned_range(const Param& param, std::int64_t row, std::int64_t rows) const;
  // The gradient there, flat.
  Tensor owned_gradient(const Param& param, std::int64_t row, std::int64_t rows) const;

  // From a full tensor [elems] (of any floating dtype) to what is owned of it, and back: collective, the
  // result is `owned` itself where this rank owns everything; else it lies in the memory of the gradients,
  // which are lost, until the next step or call.
  void keep_owned(Lane& lane, const Tensor& full, const Tensor& owned) const;
  Tensor gather_owned(Lane& lane, const Tensor& owned);
  // Memory [elems] of the accumulator type for a full tensor: the gradients', which are lost.
  Tensor scratch() const { return gradients_.slice(0, elems_); }

  // --- a step
  // `contributions` gradients will be added to each parameter. The lane is used to start reductions until
  // finish_step(). reduce = false: for a look at this rank's own gradients; no finish_step() follows.
  void begin_step(Lane& lane, int contributions, bool reduce = true);
  void gradient_ready(const Param& param) override;
  // Waits for every bucket. Afterwards a rank has Σ over the group in the gradients that it owns; then adds a
  // tied parameter's gradient to its owner's.
  void finish_step();

  // Gradients whole on every rank, from what each owns. Collective; not part of a step.
  void gather_gradients(Lane& lane);

  // Starts gathering the weights that their owners have written, in the order in which forward uses them.
  void start_gather(Lane& lane);
  // Waits until the weights of a block are whole; finish_gather: until all are. Nothing when none is on its
  // way.
  void open(Lane& lane, int block) override;
  void finish_gather(Lane& lane);

 private:
  struct Bucket {
    std::int64_t begin = 0, elems = 0;
    int parameters = 0, missing = 0;
    Async<Tensor> reduction, gather;
  };
  void reduce(Bucket& bucket);
  std::int64_t shard_elems(const Bucket& bucket) const;
  // This rank's part of a bucket, in memory.
  std::int64_t shard_begin(const Bucket& bucket) const;
  void find_pieces();

  Communicator& dp_;
  bool overlap_, distributed_;
  std::vector<Slot> slots_, tied_, frozen_, states_;
  std::vector<Piece> pieces_;
  std::map<const Param*, std::size_t> piece_of_;  // of those of which something is owned
  std::vector<Bucket> buckets_;
  std::size_t weight_buckets_ = 0;  // of buckets_; tied gradients follow
  std::map<const Param*, std::size_t> bucket_of_;
  std::map<int, std::vector<std::size_t>> buckets_of_block_;  // where its weights lie
  Tensor weights_, gradients_, state_values_;
  std::int64_t elems_ = 0, owned_elems_ = 0;
  Lane* lane_ = nullptr;
  bool reduces_ = true;
};

}  // namespace weft
