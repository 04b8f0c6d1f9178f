// The twins of each device: what the fronts in src/ops/*.cpp dispatch to. Arguments are checked already.
#pragma once

#include "core/lane.hpp"
#include "core/trace.hpp"
#include "ops/activation.hpp"
#include "ops/attention.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/dropout.hpp"
#include "ops/head_columns.hpp"
#include "ops/moe.hpp"
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

// A product for each expert, over its rows [offsets[e], offsets[e + 1]): kNT and kNN have them in a [R, ..]
// and c [R, ..], with b [E · out, in]; kTN in a [R, out] and b [R, in], with c [E · out, in].
struct GroupedGemm {
  Gemm::Form form;
  Tensor a, b, offsets, c;
  float beta = 0;

  std::int64_t rows() const { return a.dim(0); }
  std::int64_t experts() const { return offsets.elems() - 1; }
  const Tensor& weights() const { return form == Gemm::Form::kTN ? c : b; }
  std::int64_t out() const { return weights().dim(0) / experts(); }
  std::int64_t in() const { return weights().dim(1); }
};

namespace cpu {
#include "ops/twins.inc"
}  // namespace cpu

namespace cuda {
#include "ops/twins.inc"  // NOLINT(readability-duplicate-include)
}  // namespace cuda
}  // namespace weft::ops
