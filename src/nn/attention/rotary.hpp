// Rotary positions: which rows of which table a microbatch uses.
#pragma once

#include "nn/microbatch.hpp"
#include "ops/rope.hpp"

namespace weft::nn {

class PositionRotation {
 public:
  virtual ~PositionRotation() = default;
  // In place on x [s, b, heads · head_dim].
  virtual void apply(Lane& lane, const Tensor& x, const Microbatch& mb) const = 0;
  // The derivative: rotates back.
  virtual void apply_backward(Lane& lane, const Tensor& dx, const Microbatch& mb) const = 0;
};

// For models without rotary positions.
class NoRotation final : public PositionRotation {
 public:
  void apply(Lane&, const Tensor&, const Microbatch&) const override {}
  void apply_backward(Lane&, const Tensor&, const Microbatch&) const override {}
};

class RotaryRotation final : public PositionRotation {
 public:
  // The table is shared by all layers and outlives them.
  RotaryRotation(const ops::RopeTable& table, int head_dim) : table_(table), head_dim_(head_dim) {}
  void apply(Lane& lane, const Tensor& x, const Microbatch& mb) const override { rotate(lane, x, mb, false); }
  void apply_backward(Lane& lane, const Tensor& dx, const Microbatch& mb) const override {
    rotate(lane, dx, mb, true);
  }

 private:
  void rotate(Lane& lane, const Tensor& x, const Microbatch& mb, bool inverse) const;
  const ops::RopeTable& table_;
  int head_dim_;
};

// Positions come with the data (Microbatch's position_ids): they start anew in each document.
class RotationByDocument final : public PositionRotation {
 public:
  // Row p of the table is position p.
  RotationByDocument(const ops::RopeTable& table, int head_dim) : table_(table), head_dim_(head_dim) {}
  void apply(Lane& lane, const Tensor& x, const Microbatch& mb) const override {
    ops::rope_in_place(lane, x, table_, mb.batch.position_ids, head_dim_, false);
  }
  void apply_backward(Lane& lane, const Tensor& dx, const Microbatch& mb) const override {
    ops::rope_in_place(lane, dx, table_, mb.batch.position_ids, head_dim_, true);
  }

 private:
  const ops::RopeTable& table_;
  int head_dim_;
};

}  // namespace weft::nn
