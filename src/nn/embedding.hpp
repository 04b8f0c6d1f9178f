// From token ids to the first activation [s, b, h].
#pragma once

#include <memory>

#include "nn/learned_positions.hpp"
#include "nn/microbatch.hpp"
#include "nn/param.hpp"
#include "nn/tensor_parallel.hpp"
#include "ops/dropout.hpp"

namespace weft::nn {

// Word embeddings with the vocabulary cut over tensor-parallel ranks, learned absolute positions (or none),
// dropout.
class Embedding {
 public:
  // words [V_padded/tp, h] holds rows from first_row on.
  Embedding(const TensorParallelBorder& border, const Param& words, std::int64_t first_row,
            std::unique_ptr<LearnedPositions> positions, double dropout, std::uint64_t site)
      : border_(border),
        words_(words),
        first_row_(first_row),
        positions_(std::move(positions)),
        p_(dropout),
        site_(site) {}
  Tensor forward(Lane& lane, Microbatch& mb) const;
  void backward(Lane& lane, const Tensor& dy, Microbatch& mb) const;

 private:
  // The dropout of this rank's `rows` rows of the sequence.
  ops::DropoutSite site(const Microbatch& mb, std::int64_t rows) const;

  const TensorParallelBorder& border_;
  const Param& words_;
  std::int64_t first_row_;
  std::unique_ptr<LearnedPositions> positions_;
  double p_;
  std::uint64_t site_;
};

}  // namespace weft::nn
