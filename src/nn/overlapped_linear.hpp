// Tensor-parallel linear layers whose communication runs under their own matrix products, chunk by chunk
// (Wang et al. 2023, "Overlap communication with dependent computation via decomposition"). Results, saved
// activations and gradients are bit for bit those of ColumnParallelLinear and RowParallelLinear: only rows of
// products are cut, and the weight gradient, a sum over tokens, never is.
//
// Bytes beside what the plain layers take at their peak, with C chunks and e bytes an element:
//   column  forward    none: two gathered chunks, 2/C · s·b·in·e, in place of all of x, s·b·in·e
//           backward   none: partial sums of the chunks in flight, together at most the plain dx; x is
//                      gathered while dx is computed instead of after, and held beside dx in both forms
//   row     forward    none: partial sums of the chunks in flight, together at most the plain y
//           backward   none: chunks of dy are gathered into their places in the whole
// (each allocation is rounded up to Arena::kAlignment: at most C such roundings).
#pragma once

#include "nn/chunked_border.hpp"
#include "nn/module.hpp"
#include "nn/param.hpp"

namespace weft::nn {

// As ColumnParallelLinear. forward: all-gather of chunk c + 1 under the product of chunk c. backward:
// products by chunks, each chunk's sum over ranks under the next, the last under the weight gradient.
class OverlappedColumnParallelLinear final : public Linear {
 public:
  // bias may be null. `weight_grads`: where the schedule runs deferred weight gradients. When that is after
  // each linear, backward starts to gather x for them, under the products of dx; when it is later, x stays
  // cut until the weight gradient runs, for it would be held that long.
  OverlappedColumnParallelLinear(const ChunkedBorder& border, const Param& weight, const Param* bias,
                                 DrainPoint weight_grads = DrainPoint::kLinear)
      : border_(border),
        weight_(weight),
        bias_(bias),
        gathers_early_(weight.trains() && weight_grads == DrainPoint::kLinear) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

  struct Pending {
    Tensor dy, x;
    Async<Tensor> x_full;  // live if it is being gathered already
  };
  void weight_grad(Lane& lane, Pending pending) const;

 private:
  struct Saved {
    Tensor x;  // as it came; undefined where the weight is frozen
  };
  const ChunkedBorder& border_;
  const Param& weight_;
  const Param* bias_;
  bool gathers_early_;
};

// As RowParallelLinear. forward: products by chunks, each chunk's sum over ranks under the next. backward:
// all-gather of chunk c + 1 of dy under the product of chunk c; the weight gradient keeps what was gathered.
class OverlappedRowParallelLinear final : public Linear {
 public:
  OverlappedRowParallelLinear(const ChunkedBorder& border, const Param& weight)
      : border_(border), weight_(weight) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  // dy is contiguous.
  Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

  struct Pending {
    Tensor dy_full, x;
  };
  void weight_grad(Lane& lane, Pending pending) const;

 private:
  struct Saved {
    Tensor x;
  };
  const ChunkedBorder& border_;
  const Param& weight_;
};

}  // namespace weft::nn
