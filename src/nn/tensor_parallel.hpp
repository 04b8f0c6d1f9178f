// The border of a tensor-parallel region: what lies outside is either whole on every rank or cut along the
// sequence. Two operations are all there is, and each is the derivative of the other:
//                    replicated          sequence parallel
//   spread           identity            all-gather along s
//   combine          all-reduce          reduce-scatter along s          (Korthikanti et al. 2022, conjugates
//   f/f̄, g/ḡ)
#pragma once

#include "comm/communicator.hpp"
#include "ops/row_positions.hpp"

namespace weft::nn {

class TensorParallelBorder {
 public:
  // `positions`: of the rows of a sequence that this group has inside the region.
  explicit TensorParallelBorder(Communicator& tp, ops::RowPositions positions = {})
      : tp_(tp), positions_(positions) {}
  virtual ~TensorParallelBorder() = default;
  // Into the region: x outside -> [s, b, h] on every rank.
  virtual Async<Tensor> spread(Lane& lane, const Tensor& x) const = 0;
  // Out of the region: the sum over ranks of `partial` [s, b, h], in the form it has outside. May reuse
  // `partial`.
  virtual Async<Tensor> combine(Lane& lane, const Tensor& partial) const = 0;
  // Sequence length outside the region for s inside.
  virtual std::int64_t outside(std::int64_t s) const = 0;
  // Number, among the rows inside the region, of this rank's first row outside, of `rows` that it has there.
  virtual std::int64_t first_outside(std::int64_t rows) const = 0;
  // Where those rows stand in the whole sequence.
  ops::RowPositions positions_outside(std::int64_t rows) const {
    return positions_.from(first_outside(rows));
  }
  Communicator& tp() const { return tp_; }

 protected:
  Communicator& tp_;

 private:
  ops::RowPositions positions_;
};

class ReplicatedBorder final : public TensorParallelBorder {
 public:
  using TensorParallelBorder::TensorParallelBorder;
  Async<Tensor> spread(Lane& lane, const Tensor& x) const override;
  Async<Tensor> combine(Lane& lane, const Tensor& partial) const override;
  std::int64_t outside(std::int64_t s) const override { return s; }
  std::int64_t first_outside(std::int64_t) const override { return 0; }
};

// Where nothing crosses: of linear layers that stand outside the region, whole on every rank.
class NoBorder final : public TensorParallelBorder {
 public:
  using TensorParallelBorder::TensorParallelBorder;
  Async<Tensor> spread(Lane&, const Tensor& x) const override { return Async<Tensor>(x); }
  Async<Tensor> combine(Lane&, const Tensor& partial) const override { return Async<Tensor>(partial); }
  std::int64_t outside(std::int64_t s) const override { return s; }
  std::int64_t first_outside(std::int64_t) const override { return 0; }
};

class SequenceParallelBorder final : public TensorParallelBorder {
 public:
  using TensorParallelBorder::TensorParallelBorder;
  Async<Tensor> spread(Lane& lane, const Tensor& x) const override;
  Async<Tensor> combine(Lane& lane, const Tensor& partial) const override;
  std::int64_t outside(std::int64_t s) const override { return s / tp_.size(); }
  std::int64_t first_outside(std::int64_t rows) const override { return tp_.rank() * rows; }
};

}  // namespace weft::nn
