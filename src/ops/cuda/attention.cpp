// Which attention goes to cuDNN, and which to the kernels of this repository.
#include <algorithm>

#include "ops/cuda/cudnn_attention.hpp"
#include "ops/cuda/plain_attention.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {

std::int64_t attention_scratch(const Lane&, const Tensor& q, const Tensor& k,
                               const AttentionOptions& options) {
  return cudnn_attention_takes(q, k, options) ? cudnn_attention_scratch() : 0;
}

void attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
               const AttentionResult& result, const Tensor& scratch) {
  if (cudnn_attention_takes(q, k, options) && cudnn_attention_reaches({&q, &k, &v, &result.out})) {
    cudnn_attention(lane, q, k, v, options, result, scratch);
  } else {
    plain_attention(lane, q, k, v, options, result);
  }
}

// Shapes alone do not say whether cuDNN can reach every tensor of the call, so there is room for either.
std::int64_t attention_backward_scratch(const Lane&, const Tensor& q, const Tensor& k,
                                        const AttentionOptions& options) {
  const std::int64_t plain = plain_attention_backward_scratch(q, k, options);
  if (!cudnn_attention_takes(q, k, options)) return plain;
  return std::max(plain, cudnn_attention_backward_scratch(q, k, options));
}

void attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionResult& forward, const AttentionOptions& options, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Tensor& dsinks, const Tensor& scratch) {
  if (cudnn_attention_takes(q, k, options) &&
      cudnn_attention_reaches({&dout, &q, &k, &v, &forward.out, &dq, &dk, &dv})) {
    cudnn_attention_backward(lane, dout, q, k, v, forward, options, dq, dk, dv, scratch);
  } else {
    plain_attention_backward(lane, dout, q, k, v, forward, options, dq, dk, dv, dsinks, scratch);
  }
}

}  // namespace weft::ops::cuda
