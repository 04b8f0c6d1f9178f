// Norms of queries and keys, head by head, in front of the rotation (Megatron's --qk-layernorm, Qwen 3; first
// in Dehghani et al. 2023).
#pragma once

#include <memory>

#include "nn/module.hpp"

namespace weft::nn {

class HeadNorms {
 public:
  virtual ~HeadNorms() = default;
  // In place on q [s, b, heads · d] and k [s, b, groups · d], which may be views of packed qkv.
  virtual void apply(Lane& lane, const Tensor& q, const Tensor& k, Microbatch& mb) const = 0;
  // Turns the gradients of what apply() left into those of what it found.
  virtual void apply_backward(Lane& lane, const Tensor& dq, const Tensor& dk, Microbatch& mb) const = 0;
};

class NoHeadNorms final : public HeadNorms {
 public:
  void apply(Lane&, const Tensor&, const Tensor&, Microbatch&) const override {}
  void apply_backward(Lane&, const Tensor&, const Tensor&, Microbatch&) const override {}
};

// Norms over the d channels of a head, their weights the same for all heads. The weight's gradient on a rank
// is that of its heads alone. Keeps q and k as they were; a norm wants its rows side by side, so they go
// through copies.
class QueryKeyNorms final : public HeadNorms {
 public:
  QueryKeyNorms(std::int64_t head_dim, std::unique_ptr<Norm> query, std::unique_ptr<Norm> key)
      : head_dim_(head_dim), query_(std::move(query)), key_(std::move(key)) {}
  void apply(Lane& lane, const Tensor& q, const Tensor& k, Microbatch& mb) const override;
  void apply_backward(Lane& lane, const Tensor& dq, const Tensor& dk, Microbatch& mb) const override;

 private:
  Tensor packed(Lane& lane, const Tensor& x) const;
  std::int64_t head_dim_;
  std::unique_ptr<Norm> query_, key_;
};

}  // namespace weft::nn
