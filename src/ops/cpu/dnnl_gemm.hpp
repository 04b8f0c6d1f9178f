// bf16 products by oneDNN, where the processor multiplies bf16 itself (AVX512-BF16, AMX): several times the
// rate of our own kernels, which convert to f32. Everything about oneDNN is in dnnl_gemm.cpp.
#pragma once

#include "ops/twins.hpp"

namespace weft::ops::cpu {

// Whether this product goes to oneDNN. Depends on the operands and the processor, never on shapes: slices of
// a matrix are computed as the whole is.
bool dnnl_takes(const Gemm& g);
// As gemm_scratch() and gemm().
std::int64_t dnnl_gemm_scratch(const Lane& lane, const Gemm& g);
void dnnl_gemm(Lane& lane, const Gemm& g, const Tensor& scratch);

}  // namespace weft::ops::cpu
