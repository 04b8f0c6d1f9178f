// Attention of a sequence that is cut over ranks: keys and values go round in a ring (Liu et al. 2023, "Ring
// attention with blockwise transformers"), and what each block gives is merged by its log-sum-exp.
#pragma once

#include <vector>

#include "comm/communicator.hpp"
#include "nn/attention/context/blocks.hpp"

namespace weft::nn {

// Each rank has its chunks of the sequence: q [s/cp, b, heads · d], k and v [s/cp, b, groups · d]. While a
// block is computed the next one is on its way. Blocks in which no query sees a key are left out.
class RingAttention final : public CoreAttention {
 public:
  // `cp` outlives this.
  RingAttention(const CoreAttentionShape& shape, Communicator& cp, const SequenceCut& cut);
  Tensor forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                 Microbatch& mb) const override;
  // dk and dv go round too, one step behind their keys, and each rank adds its part in the accumulator type.
  // What a rank's queries do to its own keys stays at home: half of it runs while the first keys arrive, half
  // while the last gradients do.
  void backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor q, k, v, out;
    Tensor lse;  // [b, heads, s/cp]
  };
  struct Block {
    Stretch queries, keys;
    ops::AttentionOptions options;
  };
  enum class Part { kAll, kAcrossChunks, kWithinChunks };
  // What this rank's queries see of the keys that came from rank `source`. Part: by whether queries and keys
  // are the same chunk; each query meets its sink in the block with its own key.
  std::vector<Block> blocks(Lane& lane, const Microbatch& mb, std::int64_t heads, int source,
                            Part part = Part::kAll) const;
  struct Gradients;
  void add(Lane& lane, const Saved& saved, const Tensor& dout, const Tensor& keys,
           const std::vector<Block>& blocks, Gradients& sums) const;
  int neighbour(int distance) const { return (cp_.rank() + distance + cp_.size()) % cp_.size(); }

  CoreAttentionShape shape_;
  Communicator& cp_;
  SequenceCut cut_;
};

}  // namespace weft::nn
