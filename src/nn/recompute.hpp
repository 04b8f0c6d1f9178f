// Activation recomputation: wrappers that save only their input and run their forward pass again in front of
// the backward pass (Chen et al. 2016; Korthikanti et al. 2022 for the selective forms). What runs again
// makes the same bits as before: dropout masks are functions of what they are for, not of when they are
// drawn. Weight gradients are deferred as ever; their tasks hold what they need, and outlive the second pass.
#pragma once

#include <memory>
#include <vector>

#include "nn/linear.hpp"
#include "nn/module.hpp"

namespace weft::nn {

// Consecutive layers as one that saves the input of the first [s, b, h].
class RecomputedLayers final : public Layer {
 public:
  explicit RecomputedLayers(std::vector<std::unique_ptr<Layer>> layers) : layers_(std::move(layers)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor x;
  };
  Tensor run(Lane& lane, const Tensor& x, Microbatch& mb) const;

  std::vector<std::unique_ptr<Layer>> layers_;
};

// Saves q, k and v, which are views of one tensor. Under tiled attention that leaves out only the row sums:
// the output is the projection's input and stays. Attention that keeps its probabilities gains them.
class RecomputedCoreAttention final : public CoreAttention {
 public:
  explicit RecomputedCoreAttention(std::unique_ptr<CoreAttention> core) : core_(std::move(core)) {}
  Tensor forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                 Microbatch& mb) const override;
  void backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor q, k, v;
  };
  std::unique_ptr<CoreAttention> core_;
};

// Saves the input [s, b, h] of a feed-forward network (or of a whole self-attention).
class RecomputedSublayer final : public Sublayer {
 public:
  explicit RecomputedSublayer(std::unique_ptr<Sublayer> inner) : inner_(std::move(inner)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor x;
  };
  std::unique_ptr<Sublayer> inner_;
};

// A norm and the linear layer that reads its output, such that the output is not saved: it is made again from
// the norm's input when the linear's backward needs it, and lives on until the weight gradient has run. The
// linear must be the first to save anything after the norm (qkv of an attention, fc1 of a feed-forward
// network), so that the norm's own entry is on top of the stack in its backward. In a RecomputedSublayer it
// is not: there the norm's output is the input that is saved.
class RecomputedNorm final : public Norm {
 public:
  explicit RecomputedNorm(std::unique_ptr<Norm> norm) : norm_(std::move(norm)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, const Tensor& dresidual, Microbatch& mb) const override;
  // What forward returned, of the microbatch whose entry is on top of the stack; it stays there.
  Tensor output_again(Lane& lane, Microbatch& mb) const;

 private:
  struct Saved {
    Tensor x;
    SavedStack of_norm;  // what the norm itself saves: x and statistics
  };
  std::unique_ptr<Norm> norm_;
};

class RecomputedInputLinear final : public Linear {
 public:
  // The norm belongs to the layer and lives as long.
  RecomputedInputLinear(std::unique_ptr<ColumnParallelLinear> linear, const RecomputedNorm& norm)
      : linear_(std::move(linear)), norm_(norm) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Async<Tensor> backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  std::unique_ptr<ColumnParallelLinear> linear_;
  const RecomputedNorm& norm_;
};

}  // namespace weft::nn
