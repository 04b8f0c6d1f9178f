// Learned absolute positions: which rows of which table are added to the word embeddings.
#pragma once

#include <array>

#include "nn/microbatch.hpp"
#include "nn/param.hpp"
#include "nn/tensor_parallel.hpp"

namespace weft::nn {

class LearnedPositions {
 public:
  virtual ~LearnedPositions() = default;
  // x [s, b, h] outside the tensor-parallel region, in place.
  virtual void add(Lane& lane, const Tensor& x, const Microbatch& mb) const = 0;
  virtual void backward(Lane& lane, const Tensor& dx, const Microbatch& mb) const = 0;
};

// For models without them.
class NoLearnedPositions final : public LearnedPositions {
 public:
  void add(Lane&, const Tensor&, const Microbatch&) const override {}
  void backward(Lane&, const Tensor&, const Microbatch&) const override {}
};

// A token's place in the sequence is its position.
class PositionsByPlace final : public LearnedPositions {
 public:
  // table [P, h]; both outlive this.
  PositionsByPlace(const TensorParallelBorder& border, const Param& table) : border_(border), table_(table) {}
  void add(Lane& lane, const Tensor& x, const Microbatch& mb) const override;
  void backward(Lane& lane, const Tensor& dx, const Microbatch& mb) const override;

 private:
  // Rows [row, row + rows) of those that this rank has, from position `position` on. Rows past the last
  // position only fill the sequence up to a length that can be cut; they get none.
  struct Run {
    std::int64_t row, rows, position;
  };
  std::array<Run, 2> runs(const Microbatch& mb, std::int64_t rows) const;

  const TensorParallelBorder& border_;
  const Param& table_;
};

// Positions come with the data (Microbatch's position_ids): they start anew in each document.
class PositionsByDocument final : public LearnedPositions {
 public:
  PositionsByDocument(const TensorParallelBorder& border, const Param& table)
      : border_(border), table_(table) {}
  void add(Lane& lane, const Tensor& x, const Microbatch& mb) const override;
  void backward(Lane& lane, const Tensor& dx, const Microbatch& mb) const override;

 private:
  const TensorParallelBorder& border_;
  const Param& table_;
};

}  // namespace weft::nn
