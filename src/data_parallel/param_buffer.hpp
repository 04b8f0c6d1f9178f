// ParamBuffer: the flat memory of a rank's parameters and gradients, cut into buckets that are reduced over
// the data-parallel group as soon as their last gradient has arrived.
//
// Parameters lie in reverse order of the forward pass, so the first bucket to fill is the first in memory (Li
// et al. 2020). A tied parameter has a gradient but no weight of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.hpp"
#include "nn/param.hpp"

namespace weft {

struct ParamBufferOptions {
  DType dtype = DType::kF32;               // of the weights; gradients are accumulator_of(dtype)
  std::int64_t bucket_elems = 40'000'000;  // a bucket closes when it holds this many (--ddp-bucket-size)
  bool overlap = true;                     // reduce a bucket when it is full; else all at the end of the step
  bool gradients = true;                   // false: weights only (generation)
};

class ParamBuffer final : public GradSink {
 public:
  // Takes the memory from the lane and binds every parameter of the set to it. Contents are undefined until
  // initialised or loaded (padding between parameters is zero). `dp` and `params` outlive the buffer.
  ParamBuffer(Lane& lane, ParamSet& params, Communicator& dp, const ParamBufferOptions& options);

  struct Slot {
    Param* param;
    std::int64_t offset, elems;  // in the flat weights or gradients
  };
  // Slots of parameters that own their weight, in memory order; offsets are the same in weights(),
  // gradients() and every flat tensor like them.
  const std::vector<Slot>& slots() const { return slots_; }
  const Tensor& weights() const { return weights_; }  // [elems], compute dtype
  // [elems + tied], accumulator type
  const Tensor& gradients() const { return gradients_; }
  std::int64_t elems() const { return elems_; }
  // The piece of a flat tensor [elems] that belongs to a slot, in the parameter's shape.
  static Tensor piece(const Tensor& flat, const Slot& slot);

  // A step adds `contributions` gradients to each parameter. The lane is used to start reductions until
  // finish().
  void begin_step(Lane& lane, int contributions);
  void gradient_ready(const Param& param) override;
  // Waits for every bucket; afterwards all ranks hold Σ over the group in gradients().
  void finish_step();

 private:
  struct Bucket {
    std::int64_t begin = 0, elems = 0;
    int parameters = 0, missing = 0;
    Async<Tensor> reduction;
  };
  void reduce(Bucket& bucket);

  Communicator& dp_;
  bool overlap_;
  std::vector<Slot> slots_, tied_;
  std::vector<Bucket> buckets_;
  std::vector<std::pair<const Param*, std::size_t>> bucket_of_;
  Tensor weights_, gradients_;
  std::int64_t elems_ = 0;
  Lane* lane_ = nullptr;
};

}  // namespace weft
