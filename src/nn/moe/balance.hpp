// What a router's layer has seen in a step, and how its losses weigh.
#pragma once

#include <cstdint>

#include "core/tensor.hpp"

namespace weft::nn {

// Sums over the microbatches of a step on this rank, f64: how often each expert was chosen [E], how often
// what it was given was kept [E] (less where capacity is bounded), and the aux loss and the z-loss, each
// times what its microbatch weighs in the whole loss. Written in backward, which runs once for each
// microbatch however often the forward pass is made again.
struct RouterStatistics {
  static std::int64_t columns(std::int64_t experts) { return 2 * experts + 2; }
  explicit RouterStatistics(Tensor of_layer, std::int64_t experts)
      : row(std::move(of_layer)), experts_(experts) {}
  Tensor chosen() const { return row.slice(0, experts_); }
  Tensor kept() const { return row.slice(experts_, experts_); }
  Tensor losses() const { return row.slice(2 * experts_, 2); }
  Tensor row;  // [columns]

 private:
  std::int64_t experts_;
};

}  // namespace weft::nn
