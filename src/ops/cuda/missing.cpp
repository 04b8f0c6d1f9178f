// Twins that are still to be written.
#include "ops/cuda/plain_attention.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {
[[noreturn]] void missing(const char* op) {
  no_kernels(op, {DeviceKind::kCuda, 0});
}
}  // namespace

std::int64_t row_chunks(const Lane&, std::int64_t, std::int64_t) {
  missing("row_chunks");
}
void bias_gradient(Lane&, const Tensor&, const Tensor&, float, const Tensor&) {
  missing("bias_gradient");
}
void norm(Lane&, const Tensor&, const Tensor&, const Tensor&, double, const NormResult&) {
  missing("norm");
}
void norm_backward(Lane&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                   const Tensor&, const NormGradients&, const Tensor&, const Tensor&) {
  missing("norm_backward");
}
void cross_entropy_local(Lane&, const Tensor&, const Tensor&, const CrossEntropyOptions&,
                         const CrossEntropyLocal&) {
  missing("cross_entropy_local");
}
void cross_entropy_rescale(Lane&, const CrossEntropyLocal&, const Tensor&) {
  missing("cross_entropy_rescale");
}
void cross_entropy_finish(Lane&, const Tensor&, const Tensor&, const Tensor&, const CrossEntropyOptions&,
                          const CrossEntropyResult&) {
  missing("cross_entropy_finish");
}
void cross_entropy_backward(Lane&, const Tensor&, const Tensor&, const Tensor&, const CrossEntropyOptions&,
                            double) {
  missing("cross_entropy_backward");
}
void plain_attention(Lane&, const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&,
                     const AttentionResult&) {
  missing("plain_attention");
}
std::int64_t plain_attention_backward_scratch(const Tensor&, const Tensor&, const AttentionOptions&) {
  missing("plain_attention_backward_scratch");
}
void plain_attention_backward(Lane&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const AttentionResult&, const AttentionOptions&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&) {
  missing("plain_attention_backward");
}

}  // namespace weft::ops::cuda
