// Attention of a sequence that is cut over ranks, of which each gathers all keys and values first (Dubey et
// al. 2024, "The Llama 3 herd of models", 3.3.2).
#pragma once

#include <vector>

#include "comm/communicator.hpp"
#include "nn/attention/context/blocks.hpp"

namespace weft::nn {

// Each rank has its chunks of the sequence: q [s/cp, b, heads · d], k and v [s/cp, b, groups · d]. Pays where
// groups are few. The gathered keys and values [s, b, groups · d] live only during a pass; backward gathers
// them again and scatters the sums of their gradients.
class GatheredAttention final : public CoreAttention {
 public:
  // `cp` outlives this.
  GatheredAttention(const CoreAttentionShape& shape, Communicator& cp, const SequenceCut& cut);
  Tensor forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                 Microbatch& mb) const override;
  void backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor q, k, v, out;
    std::vector<Tensor> lse;  // of each chunk of queries
  };
  struct Whole {
    Tensor k, v;  // [s, b, groups · d] in the order of the sequence
  };
  Whole gather(Lane& lane, const Tensor& k, const Tensor& v) const;
  // All keys that the queries of chunk i see, as rows of the whole sequence.
  Stretch keys_of(const Stretch& queries) const;

  CoreAttentionShape shape_;
  Communicator& cp_;
  SequenceCut cut_;
};

}  // namespace weft::nn
