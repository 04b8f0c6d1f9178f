// Flash attention by cuDNN, forward and backward.
#pragma once

#include <initializer_list>

#include "ops/attention.hpp"

namespace weft::ops::cuda {

// Whether cuDNN takes attention of these types, shapes and options: bf16 and f16, heads of a multiple of 8 up
// to 128, no dropout (its masks would depend on the layout), a causal mask, also of a window, only where the
// last query sees the last key and none comes before the first, and shapes that recur: it builds a plan for
// each. Packed documents, soft caps and sinks it does not get.
bool cudnn_attention_takes(const Tensor& q, const Tensor& k, const AttentionOptions& options);
// Whether cuDNN can read and write these where they lie: in steps of 16 bytes.
bool cudnn_attention_reaches(std::initializer_list<const Tensor*> tensors);

// Bytes of scratch: upper bounds from shapes alone, since a plan on meta memory counts them without a GPU.
// The plan that cuDNN builds is held against them.
std::int64_t cudnn_attention_scratch();
std::int64_t cudnn_attention_backward_scratch(const Tensor& q, const Tensor& k,
                                              const AttentionOptions& options);

// As the twins in ops/twins.inc.
void cudnn_attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options, const AttentionResult& result, const Tensor& scratch);
void cudnn_attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k,
                              const Tensor& v, const AttentionResult& forward,
                              const AttentionOptions& options, const Tensor& dq, const Tensor& dk,
                              const Tensor& dv, const Tensor& scratch);

}  // namespace weft::ops::cuda
