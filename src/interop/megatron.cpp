#include "interop/megatron.hpp"

namespace weft {
namespace {

constexpr auto kStacked = LayoutRow::Order::kStacked;
constexpr auto kPerGroup = LayoutRow::Order::kPerGroup;

constexpr LayoutRow kBefore[] = {
    {"embedding.word_embeddings.weight", false, kStacked, {"embedding.word_embeddings.weight"}},
    {"embedding.position_embeddings.weight", false, kStacked, {"embedding.position_embeddings.weight"}},
};

constexpr LayoutRow kLayer[] = {
    {"input_layernorm.weight", false, kStacked, {"input_layernorm.weight"}},
    {"input_layernorm.bias", false, kStacked, {"input_layernorm.bias"}},
    {"self_attention.linear_proj.weight", false, kStacked, {"self_attention.linear_proj.weight"}},
    {"self_attention.linear_proj.bias", false, kStacked, {"self_attention.linear_proj.bias"}},
    {"self_attention.linear_qkv.weight",
     false,
     kPerGroup,
     {"self_attention.linear_q.weight", "self_attention.linear_k.weight", "self_attention.linear_v.weight"}},
    {"self_attention.linear_qkv.bias",
     false,
     kPerGroup,
     {"self_attention.linear_q.bias", "self_attention.linear_k.bias", "self_attention.linear_v.bias"}},
    {"self_attention.q_layernorm.weight", false, kStacked, {"self_attention.q_layernorm.weight"}},
    {"self_attention.q_layernorm.bias", false, kStacked, {"self_attention.q_layernorm.bias"}},
    {"self_attention.k_layernorm.weight", false, kStacked, {"self_attention.k_layernorm.weight"}},
    {"self_attention.k_layernorm.bias", false, kStacked, {"self_attention.k_layernorm.bias"}},
    {"self_attention.linear_q_proj.weight", false, kStacked, {"self_attention.linear_q_proj.weight"}},
    {"self_attention.linear_q_down_proj.weight",
     false,
     kStacked,
     {"self_attention.linear_q_down_proj.weight"}},
    {"self_attention.linear_q_up_proj.weight", false, kStacked, {"self_attention.linear_q_up_proj.weight"}},
    {"self_attention.linear_kv_down_proj.weight",
     false,
     kStacked,
     {"self_attention.linear_kv_down_proj.weight"}},
    {"self_attention.linear_kv_up_proj.weight", false, kStacked, {"self_attention.linear_kv_up_proj.weight"}},
    {"self_attention.kv_layernorm.weight", false, kStacked, {"self_attention.kv_layernorm.weight"}},
    {"self_attention.kv_layernorm.bias", false, kStacked, {"self_attention.kv_layernorm.bias"}},
    {"pre_mlp_layernorm.weight", false, kStacked, {"pre_mlp_layernorm.weight"}},
    {"pre_mlp_layernorm.bias", false, kStacked, {"pre_mlp_layernorm.bias"}},
    // Of a model these two lines stand for, one has the tensors: gated or plain.
    {"mlp.linear_fc1.weight", false, kStacked, {"mlp.linear_gate.weight", "mlp.linear_up.weight"}},
    {"mlp.linear_fc1.bias", false, kStacked, {"mlp.linear_gate.bias", "mlp.linear_up.bias"}},
    {"mlp.linear_fc1.weight", false, kStacked, {"mlp.linear_fc1.weight"}},
    {"mlp.linear_fc1.bias", false, kStacked, {"mlp.linear_fc1.bias"}},
    {"mlp.linear_fc2.weight", false, kStacked, {"mlp.linear_fc2.weight"}},
    {"mlp.linear_fc2.bias", false, kStacked, {"mlp.linear_fc2.bias"}},
};

constexpr LayoutRow kMixture[] = {
    {"mlp.router.weight", false, kStacked, {"mlp.router.weight"}},
    {"mlp.router.expert_bias", false, kStacked, {"mlp.router.expert_bias"}},
    {"mlp.shared_experts.linear_fc1.weight",
     false,
     kStacked,
     {"mlp.shared_experts.linear_gate.weight", "mlp.shared_experts.linear_up.weight"}},
    {"mlp.shared_experts.linear_fc1.weight", false, kStacked, {"mlp.shared_experts.linear_fc1.weight"}},
    {"mlp.shared_experts.linear_fc2.weight", false, kStacked, {"mlp.shared_experts.linear_fc2.weight"}},
};
constexpr LayoutRow kExpert[] = {
    {"linear_fc1.weight", false, kStacked, {"linear_gate.weight", "linear_up.weight"}},
    {"linear_fc1.weight", false, kStacked, {"linear_fc1.weight"}},
    {"linear_fc2.weight", false, kStacked, {"linear_fc2.weight"}},
};

constexpr LayoutRow kAfter[] = {
    {"decoder.final_layernorm.weight", false, kStacked, {"decoder.final_layernorm.weight"}},
    {"decoder.final_layernorm.bias", false, kStacked, {"decoder.final_layernorm.bias"}},
    {"output_layer.weight", false, kStacked, {"output_layer.weight"}},
};

}  // namespace

TensorMap megatron_map(const ModelConfig& config) {
  return make_tensor_map(config, {"decoder.layers.{}.", kBefore, kLayer, kAfter, kMixture,
                                  "mlp.experts.local_experts.{}.", kExpert});
}

}  // namespace weft
