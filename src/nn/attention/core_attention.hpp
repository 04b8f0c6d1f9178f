// softmax(q kᵀ) v, between the qkv and the output projection.
#pragma once

#include "nn/module.hpp"
#include "ops/attention.hpp"

namespace weft::nn {

struct CoreAttentionShape {
  int head_dim = 0;
  double scale = 1;
  double dropout = 0;
  std::int64_t window = 0;      // see ops::AttentionOptions
  bool deterministic = false;   // see ops::AttentionOptions
  std::uint64_t site = 0;       // of the dropout
  std::int64_t first_head = 0;  // global number of this rank's first query head
};

// What every form of it asks of the operation; the mask is the form's own.
ops::AttentionOptions attention_options(const CoreAttentionShape& shape, const Microbatch& mb);

// Tiled causal attention; saves q, k, v (views of qkv), the output and one number per row.
class CausalAttention final : public CoreAttention {
 public:
  explicit CausalAttention(const CoreAttentionShape& shape) : shape_(shape) {}
  Tensor forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                 Microbatch& mb) const override;
  void backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor q, k, v;
    ops::AttentionResult result;
  };
  CoreAttentionShape shape_;
};

// For generation: appends k and v to layer `layer` of the microbatch's cache and attends to all of it. No
// backward.
class CachedAttention final : public CoreAttention {
 public:
  CachedAttention(const CoreAttentionShape& shape, std::size_t layer) : shape_(shape), layer_(layer) {}
  Tensor forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                 Microbatch& mb) const override;
  void backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                Microbatch& mb) const override;

 private:
  CoreAttentionShape shape_;
  std::size_t layer_;
};

}  // namespace weft::nn
