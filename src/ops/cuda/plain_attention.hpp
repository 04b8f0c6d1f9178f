// Attention by kernels of this repository: every type, head size, offset and dropout.
#pragma once

#include "ops/attention.hpp"

namespace weft::ops::cuda {

void plain_attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options, const AttentionResult& result);
std::int64_t plain_attention_backward_scratch(const Tensor& q, const Tensor& k,
                                              const AttentionOptions& options);
void plain_attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k,
                              const Tensor& v, const AttentionResult& forward,
                              const AttentionOptions& options, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv, const Tensor& scratch);

}  // namespace weft::ops::cuda
