// Normalisation layers.
#pragma once

#include "nn/module.hpp"
#include "nn/param.hpp"

namespace weft::nn {

class RmsNorm final : public Norm {
 public:
  RmsNorm(const Param& weight, double eps) : weight_(weight), eps_(eps) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, const Tensor& dresidual, Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor x, rstd;
  };
  const Param& weight_;
  double eps_;
};

class LayerNorm final : public Norm {
 public:
  LayerNorm(const Param& weight, const Param& bias, double eps) : weight_(weight), bias_(bias), eps_(eps) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, const Tensor& dresidual, Microbatch& mb) const override;

 private:
  struct Saved {
    Tensor x, mean, rstd;
  };
  const Param& weight_;
  const Param& bias_;
  double eps_;
};

}  // namespace weft::nn
