// The twins of each device: what the fronts in src/ops/*.cpp dispatch to. Arguments are checked already.
#pragma once

#include "core/lane.hpp"
#include "core/trace.hpp"
#include "ops/activation.hpp"
#include "ops/attention.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/dropout.hpp"
#include "ops/norm.hpp"
#include "ops/normal.hpp"
#include "ops/optimizer.hpp"
#include "ops/rope.hpp"

namespace weft::ops {

// c = beta · c + a · b (+ bias on columns); forms as in gemm.hpp: kNT a [m, k], b [n, k]; kNN a [m, k], b [k,
// n]; kTN a [k, m], b [k, n]. The tensors are matrices of rows() rows.
struct Gemm {
  enum class Form { kNT, kNN, kTN };
  Form form;
  Tensor a, b, bias, c;
  float beta = 0;

  std::int64_t m() const { return form == Form::kTN ? a.columns() : a.rows(); }
  std::int64_t n() const { return form == Form::kNT ? b.rows() : b.columns(); }
  std::int64_t k() const { return form == Form::kTN ? a.rows() : a.columns(); }
};

namespace cpu {
#include "ops/twins.inc"
}  // namespace cpu

namespace cuda {
#include "ops/twins.inc"  // NOLINT(readability-duplicate-include)
}  // namespace cuda
}  // namespace weft::ops
