// Tensor-parallel linear layers whose other side, too, lies outside the region (Megatron's gather_output of a
// column-parallel and input_is_parallel = False of a row-parallel linear): wrappers that cut or join the last
// dim around any Linear. Each is the derivative of the other; the whole tensor is the same on every rank.
#pragma once

#include <memory>

#include "comm/communicator.hpp"
#include "nn/module.hpp"

namespace weft::nn {

// y [s, b, out/tp] of a column-parallel linear -> [s, b, out] on every rank. backward takes this rank's
// columns of dy: no communication.
class GatheredOutputLinear final : public Linear {
 public:
  GatheredOutputLinear(Communicator& tp, std::unique_ptr<Linear> column)
      : tp_(tp), column_(std::move(column)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  // The weight gradient holds all of dy until it has run.
  Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  Communicator& tp_;
  std::unique_ptr<Linear> column_;
};

// x [s, b, in] on every rank -> this rank's columns [s, b, in/tp], copied so that only they are saved, into a
// row-parallel linear. backward gathers dx. tp must divide in.
class ScatteredInputLinear final : public Linear {
 public:
  ScatteredInputLinear(Communicator& tp, std::unique_ptr<Linear> row) : tp_(tp), row_(std::move(row)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  Communicator& tp_;
  std::unique_ptr<Linear> row_;
};

// x [..., n] of each rank, side by side in rank order: [..., tp · n]. Takes twice the result's bytes until it
// has been waited for; in a group of one it is x.
Async<Tensor> gather_columns(Lane& lane, Communicator& tp, const Tensor& x);
// This rank's columns of x [..., tp · n]: a view.
Tensor own_columns(const Communicator& tp, const Tensor& x);

}  // namespace weft::nn
