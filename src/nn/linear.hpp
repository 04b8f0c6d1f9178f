// Linear layers cut over tensor-parallel ranks (Shoeybi et al. 2019). On one rank they are plain linear
// layers: the same code with communicators that return at once.
#pragma once

#include "nn/module.hpp"
#include "nn/param.hpp"
#include "nn/tensor_parallel.hpp"

namespace weft::nn {

// y = x Wᵀ + b, rows of W [out/tp, in] on each rank.         x outside the region, y [s, b, out/tp]
class ColumnParallelLinear final : public Linear {
 public:
  // bias may be null. bias_gradient false: who reads y takes the gradient of the bias from dy.
  ColumnParallelLinear(const TensorParallelBorder& border, const Param& weight, const Param* bias,
                       bool bias_gradient = true)
      : border_(border), weight_(weight), bias_(bias), trained_bias_(bias_gradient ? bias : nullptr) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;
  // backward for a caller that has x itself and saved nothing.
  Async<Tensor> backward_of(Lane& lane, const Tensor& dy, Tensor x, Microbatch& mb) const;

  struct Pending {
    Tensor dy, x;
  };
  void weight_grad(Lane& lane, Pending pending) const;

 private:
  struct Saved {
    // Undefined where the weight is frozen.
    Tensor x;  // as it came: under sequence parallel the shard, gathered again when the weight gradient runs
  };
  const TensorParallelBorder& border_;
  const Param& weight_;
  const Param* bias_;
  const Param* trained_bias_;  // by this
};

// y = Σ over ranks of x Wᵀ, columns of W [out, in/tp] on each rank.   x [s, b, in/tp], y outside the region.
// The bias belongs to the bias-dropout-add that follows: it is added once, after the sum.
class RowParallelLinear final : public Linear {
 public:
  // `weight_grads`: where the schedule runs deferred weight gradients. When that is after each linear, they
  // use the dy that backward has gathered; when it is later they keep this rank's part of it and gather
  // again.
  RowParallelLinear(const TensorParallelBorder& border, const Param& weight,
                    DrainPoint weight_grads = DrainPoint::kLinear)
      : border_(border), weight_(weight), gathers_again_(weight_grads != DrainPoint::kLinear) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

  // The parts of both, for a caller that has x itself: what is not kept and what is not deferred.
  Tensor product(Lane& lane, const Tensor& x) const;
  struct InputGradient {
    Tensor dx, dy;  // dy for defer()
  };
  InputGradient input_gradient(Lane& lane, const Tensor& dy) const;
  void defer(Microbatch& mb, Tensor dy, Tensor x) const;

  struct Pending {
    Tensor dy, x;  // dy as it came, or gathered
  };
  void weight_grad(Lane& lane, Pending pending) const;

 private:
  struct Saved {
    Tensor x;
  };
  const TensorParallelBorder& border_;
  const Param& weight_;
  bool gathers_again_;
};

}  // namespace weft::nn
