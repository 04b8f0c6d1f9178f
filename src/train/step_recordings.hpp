// Recorded microbatches (CUDA graphs): a forward and backward pass that differs from an earlier one in its
// data alone is given to the device as a whole.
#pragma once

#include <functional>
#include <list>
#include <vector>

#include "core/lane.hpp"
#include "nn/microbatch.hpp"
#include "nn/param.hpp"

namespace weft {

class StepRecordings {
 public:
  // Of passes that add gradients to `params`, which outlive this.
  explicit StepRecordings(const ParamSet& params) : params_(params) {}

  // Runs `pass`, the forward and backward pass of `mb`, which adds its losses to `loss`. The first time that
  // a pass of its kind comes it runs as it is (products are tuned, kernels loaded); the second time it is
  // recorded; from then on the recording is repeated, and only what the host counts is done besides. A kind
  // is everything that a recording holds fast: addresses (so the free memory of the arena too), the loss
  // scale, and whether gradients are written or added to.
  void run(Lane& lane, const Microbatch& mb, const Tensor& loss, const std::function<void()>& pass);

 private:
  struct Kind {
    const void *tokens, *labels, *sample_ids, *loss;
    std::uint64_t arena;
    double loss_scale;
    bool first;
    bool operator==(const Kind&) const = default;
  };
  struct Recording {
    Kind kind;
    std::unique_ptr<RecordedWork> work;  // null: seen once
    std::vector<int> contributions;      // of each parameter
  };
  std::vector<int> contributions() const;

  static constexpr std::size_t kMost = 8;  // more kinds than that: the oldest goes
  const ParamSet& params_;
  std::list<Recording> recordings_;  // newest first
};

}  // namespace weft
