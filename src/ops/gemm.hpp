// Matrix products of linear layers. Activations [..., n] are matrices of x.rows() rows; weights are [out,
// in].
//
// dtypes: f32, bf16, f16 (computed in f32), f64 (on the CPU a plain reference loop, for derivative checks).
// Products are summed in the accumulator type; results are rounded once. Repeating a product gives the same
// bits; on the CPU cutting rows of the result never changes a bit of it, on a GPU another shape is another
// algorithm.
#pragma once

#include "core/lane.hpp"

namespace weft::ops {

// y [..., out] = x [..., in] · wᵀ (+ bias [out]); w [out, in]. `bias` may be undefined.
Tensor gemm_nt(Lane& lane, const Tensor& x, const Tensor& w, const Tensor& bias = {});
void gemm_nt_into(Lane& lane, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y);
// dx [..., in] = dy [..., out] · w [out, in].
Tensor gemm_nn(Lane& lane, const Tensor& dy, const Tensor& w);
void gemm_nn_into(Lane& lane, const Tensor& dy, const Tensor& w, const Tensor& dx);
// dw [out, in] = beta · dw + dyᵀ · x, summed in dw's dtype (f32; f64 for f64). beta is 0 (writes) or 1.
void gemm_tn_accumulate(Lane& lane, const Tensor& dy, const Tensor& x, const Tensor& dw, float beta);
// db [out] = beta · db + column sums of dy [..., out]; db f32 (f64 for f64).
void bias_gradient(Lane& lane, const Tensor& dy, const Tensor& db, float beta);

}  // namespace weft::ops
