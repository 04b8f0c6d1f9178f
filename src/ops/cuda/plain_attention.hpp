// Attention without tensor cores, for what the library does not take: f32 by plain FMA, f64, head sizes it
// refuses, dropout counted by global indices, packed documents, soft caps and sinks. Contract and arguments
// as ops/attention.hpp; head_dim ≤ 256.
#pragma once

#include "core/lane.hpp"
#include "ops/attention.hpp"

namespace weft::ops::cuda {

inline constexpr int kPlainAttentionHeadDim = 256;  // at most

void plain_attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options, const AttentionResult& result);

// Bytes.
std::int64_t plain_attention_backward_scratch(const Tensor& q, const Tensor& k,
                                              const AttentionOptions& options);
void plain_attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k,
                              const Tensor& v, const AttentionResult& forward,
                              const AttentionOptions& options, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv, const Tensor& dsinks, const Tensor& scratch);

}  // namespace weft::ops::cuda
