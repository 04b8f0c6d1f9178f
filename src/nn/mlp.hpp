// The feed-forward network: fc1, activation, fc2.
#pragma once

#include <memory>

#include "nn/linear.hpp"
#include "nn/module.hpp"
#include "ops/activation.hpp"

namespace weft::nn {

class ActivationLayer {
 public:
  virtual ~ActivationLayer() = default;
  // [s, b, width of fc1] -> [s, b, width of fc2's input]
  virtual Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const = 0;
  virtual Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const = 0;
};

// y = f(x)
class PlainActivation final : public ActivationLayer {
 public:
  explicit PlainActivation(ops::Activation kind) : kind_(kind) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor x;
  };
  ops::Activation kind_;
};

// x = [gate | up] of this rank, y = f(gate) · up     (Shazeer 2020)
class GatedActivation final : public ActivationLayer {
 public:
  explicit GatedActivation(ops::Activation kind) : kind_(kind) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor x;
  };
  ops::Activation kind_;
};

class Mlp final : public Sublayer {
 public:
  Mlp(std::unique_ptr<Linear> fc1, std::unique_ptr<ActivationLayer> activation, std::unique_ptr<Linear> fc2)
      : fc1_(std::move(fc1)), activation_(std::move(activation)), fc2_(std::move(fc2)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  std::unique_ptr<Linear> fc1_;
  std::unique_ptr<ActivationLayer> activation_;
  std::unique_ptr<Linear> fc2_;
};

// The same network, keeping fc1's output alone: what fc2 read is made again in backward, by the pass over
// memory that the activation's derivative needs anyway. A third (gated: a quarter) of the network's
// activations less.
class ActivationAgainMlp final : public Sublayer {
 public:
  // fc1_bias: null, or fc1's bias, of a plain activation, where fc1 itself leaves its gradient to this.
  ActivationAgainMlp(std::unique_ptr<Linear> fc1, const Param* fc1_bias, ops::Activation kind, bool gated,
                     std::unique_ptr<RowParallelLinear> fc2)
      : fc1_(std::move(fc1)), fc1_bias_(fc1_bias), kind_(kind), gated_(gated), fc2_(std::move(fc2)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor h;  // fc1's output
  };
  std::unique_ptr<Linear> fc1_;
  const Param* fc1_bias_;
  ops::Activation kind_;
  bool gated_;
  std::unique_ptr<RowParallelLinear> fc2_;
};

}  // namespace weft::nn
