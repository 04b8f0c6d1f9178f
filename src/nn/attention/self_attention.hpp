// Multi-head and grouped-query self-attention.
#pragma once

#include <memory>

#include "nn/attention/head_norm.hpp"
#include "nn/attention/rotary.hpp"
#include "nn/module.hpp"

namespace weft::nn {

// Sizes of this rank: heads and key/value groups it owns.
struct HeadCounts {
  std::int64_t heads = 0, groups = 0, head_dim = 0;
};

// qkv [s, b, (heads + 2 · groups) · d] = [all q | all k | all v]: q, k, v are column ranges of one tensor.
class SelfAttention final : public Sublayer {
 public:
  SelfAttention(HeadCounts counts, std::unique_ptr<Linear> qkv, std::unique_ptr<HeadNorms> norms,
                std::unique_ptr<PositionRotation> rotation, std::unique_ptr<CoreAttention> core,
                std::unique_ptr<Linear> proj)
      : counts_(counts),
        qkv_(std::move(qkv)),
        norms_(std::move(norms)),
        rotation_(std::move(rotation)),
        core_(std::move(core)),
        proj_(std::move(proj)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  struct Parts {
    Tensor qk, q, k, v;  // views
  };
  Parts split(const Tensor& qkv) const;

  HeadCounts counts_;
  std::unique_ptr<Linear> qkv_;
  std::unique_ptr<HeadNorms> norms_;
  std::unique_ptr<PositionRotation> rotation_;
  std::unique_ptr<CoreAttention> core_;
  std::unique_ptr<Linear> proj_;
};

}  // namespace weft::nn
