// Attention of a sequence that is cut over ranks, which exchange positions for heads around it: each rank
// then has all the positions of some heads (Jacobs et al. 2023, "DeepSpeed Ulysses").
#pragma once

#include <memory>

#include "comm/communicator.hpp"
#include "nn/attention/context/blocks.hpp"

namespace weft::nn {

// Each rank has its chunks of the sequence: q [s/n, b, heads · d], k and v [s/n, b, groups · d], n ranks in
// the group; `inner` is what a rank does with [s, b, heads/n · d] in the order of the sequence: plain
// attention where the group holds whole sequences, a ring over the other groups where each holds a part
// (Fang & Zhao 2024, "USP"). n divides heads; where it does not divide groups, groups divides n, and
// neighbouring ranks share one.
class ExchangedAttention final : public CoreAttention {
 public:
  // `group` outlives this. `cut`: of what the group holds together.
  ExchangedAttention(int head_dim, Communicator& group, const SequenceCut& cut,
                     std::unique_ptr<CoreAttention> inner);
  Tensor forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                 Microbatch& mb) const override;
  void backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                Microbatch& mb) const override;

 private:
  struct Saved {
    std::int64_t q_width, kv_width;  // columns of the heads that a rank has after the exchange
  };
  // Columns of `width` that rank r of the group gets of each position: [begin, begin + count).
  struct Columns {
    std::int64_t begin, count;
  };
  Columns columns_of(std::int64_t width, int r) const;
  // [s/n, b, ...] of all heads, a block of columns for each rank -> [s, b, ...] of this rank's heads, in the
  // order of the sequence; and back.
  // Both are [s, b, columns]: rows by rank on one side, by position on the other.
  Tensor to_heads(Lane& lane, const Tensor& blocks) const;
  Tensor to_positions(Lane& lane, const Tensor& whole) const;

  // Every rank sends as many rows to each: [n · s/n, b, columns] by who gets, or got, them.
  Tensor exchange(Lane& lane, const Tensor& blocks) const;
  // A copy in which each rank's chunks stand in the order of the sequence, or (back) by rank again.
  Tensor reordered(Lane& lane, const Tensor& x, bool back) const;

  int head_dim_;
  Communicator& group_;
  SequenceCut cut_;
  std::unique_ptr<CoreAttention> inner_;
};

}  // namespace weft::nn
