// Attention of a sequence that is cut over ranks: keys and values go round in a ring (Liu et al. 2023, "Ring
// attention with blockwise transformers"), and what each block gives is merged by its log-sum-exp.
#pragma once

#include <optional>

#include "comm/communicator.hpp"
#include "nn/attention/context/zigzag.hpp"
#include "nn/attention/core_attention.hpp"

namespace weft::nn {

// Each rank has its two chunks of the sequence (Zigzag): q [s/cp, b, heads · d], k and v [s/cp, b, groups ·
// d]. While a block is computed the next one is on its way. Pairs of chunks in which no query sees a key are
// left out. Without dropout of probabilities.
class RingAttention final : public CoreAttention {
 public:
  // `cp` outlives this.
  RingAttention(const CoreAttentionShape& shape, Communicator& cp);
  Tensor forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                 Microbatch& mb) const override;
  // dk and dv go round too, one step behind their keys, and each rank adds its part in fp32.
  void backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor q, k, v, out;
    Tensor lse[2];  // of each chunk of queries
  };
  // What of its keys a chunk of queries that starts at `queries` sees of the chunk of keys at `keys`; no
  // value: of none.
  std::optional<ops::AttentionOptions> pair(const Zigzag& zigzag, std::int64_t queries,
                                            std::int64_t keys) const;
  int neighbour(int distance) const { return (cp_.rank() + distance + cp_.size()) % cp_.size(); }

  CoreAttentionShape shape_;
  Communicator& cp_;
};

}  // namespace weft::nn
