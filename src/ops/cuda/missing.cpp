// Twins that are still to be written.
#include "ops/cuda/tools.hpp"
#include "ops/dispatch.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cuda {
namespace {
[[noreturn]] void missing(const char* op) {
  no_kernels(op, {DeviceKind::kCuda, 0});
}
}  // namespace

std::int64_t gemm_scratch(const Lane&, const Gemm&) {
  missing("gemm_scratch");
}
void gemm(Lane&, const Gemm&, const Tensor&) {
  missing("gemm");
}
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
std::int64_t attention_scratch(const Lane&, const Tensor&, const Tensor&, const AttentionOptions&) {
  missing("attention_scratch");
}
void attention(Lane&, const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&,
               const AttentionResult&, const Tensor&) {
  missing("attention");
}
std::int64_t attention_backward_scratch(const Lane&, const Tensor&, const Tensor&, const AttentionOptions&) {
  missing("attention_backward_scratch");
}
void attention_backward(Lane&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const AttentionResult&, const AttentionOptions&, const Tensor&, const Tensor&,
                        const Tensor&, const Tensor&) {
  missing("attention_backward");
}

std::shared_ptr<GemmPlans> make_gemm_plans(int, const std::string&) {
  return nullptr;
}
std::shared_ptr<AttentionPlans> make_attention_plans(int) {
  return nullptr;
}

}  // namespace weft::ops::cuda
