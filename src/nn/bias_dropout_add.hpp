// The end of a sublayer: bias, dropout and residual in one pass.
#pragma once

#include "nn/module.hpp"
#include "nn/param.hpp"
#include "nn/tensor_parallel.hpp"

namespace weft::nn {

class BiasDropoutAdd final : public ResidualAdd {
 public:
  // Lies outside the tensor-parallel regions. bias may be null; `site` tells this place from every other one
  // in the model (see dropout_site).
  BiasDropoutAdd(const TensorParallelBorder& border, const Param* bias, double dropout, std::uint64_t site)
      : border_(border), bias_(bias), p_(dropout), site_(site) {}
  Tensor forward(Lane& lane, const Tensor& x, const Tensor& residual, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dy, Microbatch& mb) const override;

 private:
  const TensorParallelBorder& border_;
  const Param* bias_;
  double p_;
  std::uint64_t site_;
};

// The number of a dropout site: layer is global (from 0), embedding's is −1; place is "attention", "mlp", ...
std::uint64_t dropout_site(std::int64_t layer, std::string_view place);

}  // namespace weft::nn
