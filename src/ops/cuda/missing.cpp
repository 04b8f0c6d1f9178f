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
void fill(Lane&, const Tensor&, double) {
  missing("fill");
}
void copy(Lane&, const Tensor&, const Tensor&) {
  missing("copy");
}
void upload(Lane&, const Tensor&, const Tensor&) {
  missing("upload");
}
void add_in_place(Lane&, const Tensor&, const Tensor&) {
  missing("add_in_place");
}
void scale_in_place(Lane&, const Tensor&, double) {
  missing("scale_in_place");
}
void sum(Lane&, const Tensor&, bool, const Tensor&, const Tensor&) {
  missing("sum");
}
void find_nonfinite(Lane&, const Tensor&, std::int64_t&) {
  missing("find_nonfinite");
}
void activation(Lane&, Activation, const Tensor&, const Tensor&) {
  missing("activation");
}
void activation_backward(Lane&, Activation, const Tensor&, const Tensor&, const Tensor&) {
  missing("activation_backward");
}
void gated_activation(Lane&, Activation, const Tensor&, const Tensor&) {
  missing("gated_activation");
}
void gated_activation_backward(Lane&, Activation, const Tensor&, const Tensor&, const Tensor&) {
  missing("gated_activation_backward");
}
void norm(Lane&, const Tensor&, const Tensor&, const Tensor&, double, const NormResult&) {
  missing("norm");
}
void norm_backward(Lane&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                   const Tensor&, const NormGradients&, const Tensor&, const Tensor&) {
  missing("norm_backward");
}
void rope_in_place(Lane&, const Tensor&, const RopeTable&, const Tensor&, int, bool) {
  missing("rope_in_place");
}
void bias_dropout_add(Lane&, const Tensor&, const Tensor&, const Tensor&, const DropoutSite&, const Tensor&) {
  missing("bias_dropout_add");
}
void dropout_backward(Lane&, const Tensor&, const DropoutSite&, const Tensor&) {
  missing("dropout_backward");
}
void embedding(Lane&, const Tensor&, const Tensor&, std::int64_t, const Tensor&) {
  missing("embedding");
}
void embedding_backward(Lane&, const Tensor&, const Tensor&, const Tensor&, std::int64_t, float) {
  missing("embedding_backward");
}
void add_positions(Lane&, const Tensor&, const Tensor&, std::int64_t) {
  missing("add_positions");
}
void add_positions_backward(Lane&, const Tensor&, const Tensor&, std::int64_t, float) {
  missing("add_positions_backward");
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
void adamw(Lane&, const AdamWStep&, const FlatPieces&, const AdamWTensors&) {
  missing("adamw");
}
void sgd(Lane&, const SgdStep&, const FlatPieces&, const SgdTensors&) {
  missing("sgd");
}
std::int64_t sums_of_squares_partials(const Lane&, const FlatPieces&) {
  missing("sums_of_squares_partials");
}
void sums_of_squares(Lane&, const FlatPieces&, const Tensor&, const Tensor&, const Tensor&) {
  missing("sums_of_squares");
}

std::shared_ptr<GemmPlans> make_gemm_plans(int, const std::string&) {
  return nullptr;
}
std::shared_ptr<AttentionPlans> make_attention_plans(int) {
  return nullptr;
}

}  // namespace weft::ops::cuda
