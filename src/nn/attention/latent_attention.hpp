// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1): keys and values come from a
// small latent vector of each token, and so may queries. Of the channels in which a query meets its keys,
// those that are rotated have keys of their own, the same for all heads.
#pragma once

#include <algorithm>
#include <memory>

#include "nn/attention/rotary.hpp"
#include "nn/module.hpp"
#include "nn/tensor_parallel.hpp"

namespace weft::nn {

// Heads of this rank; channels of a query and key that are rotated and that are not, and of a value.
struct LatentHeads {
  std::int64_t heads = 0;
  std::int64_t rotated = 0, still = 0, value = 0;
  std::int64_t latent = 0;  // of keys and values
  // Channels of a head as core attention has it: queries and keys as [rotated | still], values behind them or
  // not, each filled up with zeros, which change no score and are cut off the result.
  std::int64_t head_dim() const { return std::max(rotated + still, value); }
};

// y = up(norm(down(x))): the matrix of rank dim(latent) that queries may go through. down and norm stand
// outside the tensor-parallel region.
class LowRankLinear final : public Linear {
 public:
  LowRankLinear(std::unique_ptr<Linear> down, std::unique_ptr<Norm> norm, std::unique_ptr<Linear> up)
      : down_(std::move(down)), norm_(std::move(norm)), up_(std::move(up)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  std::unique_ptr<Linear> down_;
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<Linear> up_;
};

class LatentAttention final : public Sublayer {
 public:
  struct Parts {
    std::unique_ptr<Linear>
        query;  // x outside -> [s, b, heads · (still + rotated)], each head [still | rotated]
    std::unique_ptr<Linear>
        kv_down;  // x outside -> outside [s, b, latent + rotated], the keys of all heads behind
    std::unique_ptr<Norm> kv_norm;  // of the latent
    std::unique_ptr<Linear> kv_up;  // latent -> [s, b, heads · (still + value)], each head [still | value]
    std::unique_ptr<PositionRotation> query_rotation;  // of heads of head_dim()
    std::unique_ptr<PositionRotation> key_rotation;    // of one head of `rotated`
    std::unique_ptr<CoreAttention> core;
    std::unique_ptr<Linear> proj;  // [s, b, heads · value] -> outside
  };
  LatentAttention(LatentHeads heads, const TensorParallelBorder& border, Parts parts)
      : heads_(heads), border_(border), parts_(std::move(parts)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  struct KeysValues {
    Tensor k, v;
  };
  Tensor queries(Lane& lane, const Tensor& x, Microbatch& mb) const;
  KeysValues keys_values(Lane& lane, const Tensor& x, Microbatch& mb) const;
  // The gradients of x.
  Tensor queries_backward(Lane& lane, const Tensor& dq, Microbatch& mb) const;
  Tensor keys_values_backward(Lane& lane, const Tensor& dk, const Tensor& dv, Microbatch& mb) const;
  Tensor full_heads(Lane& lane, const Tensor& like, std::int64_t used, const char* what) const;

  LatentHeads heads_;
  const TensorParallelBorder& border_;
  Parts parts_;
};

}  // namespace weft::nn
