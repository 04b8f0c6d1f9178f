// softmax(q kᵀ) v, between the qkv and the output projection.
#pragma once

#include <vector>

#include "nn/module.hpp"
#include "nn/param.hpp"
#include "ops/attention.hpp"

namespace weft::nn {

struct CoreAttentionShape {
  int head_dim = 0;
  double scale = 1;
  double dropout = 0;
  std::int64_t window = 0;      // see ops::AttentionOptions
  double soft_cap = 0;          // see ops::AttentionOptions
  bool deterministic = false;   // see ops::AttentionOptions
  std::uint64_t site = 0;       // of the dropout
  std::int64_t first_head = 0;  // global number of this rank's first query head
  // Learned sinks, one for each of the tensor-parallel rank's query heads, of which attention has those from
  // first_sink on; null: none.
  const Param* sinks = nullptr;
  std::int64_t first_sink = 0;
};

// What every form of it asks of the operation for `heads` query heads; the mask is the form's own.
ops::AttentionOptions attention_options(Lane& lane, const CoreAttentionShape& shape, const Microbatch& mb,
                                        std::int64_t heads);
// Where an operation puts the gradient of its sinks; undefined where it has none.
Tensor sink_gradient(Lane& lane, const ops::AttentionOptions& options);
// Adds what the operations of a backward pass gave, each for the same sinks.
void contribute_sinks(Lane& lane, const CoreAttentionShape& shape, const std::vector<Tensor>& gradients);

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
  ops::AttentionOptions options(Lane& lane, const Tensor& q, const Microbatch& mb) const {
    return attention_options(lane, shape_, mb, q.columns() / shape_.head_dim);
  }
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
