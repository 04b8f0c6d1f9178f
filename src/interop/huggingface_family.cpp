#include "interop/huggingface_family.hpp"

#include <algorithm>
#include <string_view>

#include "core/check.hpp"
#include "interop/huggingface.hpp"

namespace weft {
namespace {

constexpr auto kStacked = LayoutRow::Order::kStacked;

// GPT-2's linear weights are stored [in, out].
constexpr LayoutRow kGpt2Before[] = {
    {"transformer.wte.weight", false, kStacked, {"embedding.word_embeddings.weight"}},
    {"transformer.wpe.weight", false, kStacked, {"embedding.position_embeddings.weight"}},
};
constexpr LayoutRow kGpt2Layer[] = {
    {"ln_1.weight", false, kStacked, {"input_layernorm.weight"}},
    {"ln_1.bias", false, kStacked, {"input_layernorm.bias"}},
    {"attn.c_attn.weight",
     true,
     kStacked,
     {"self_attention.linear_q.weight", "self_attention.linear_k.weight", "self_attention.linear_v.weight"}},
    {"attn.c_attn.bias",
     false,
     kStacked,
     {"self_attention.linear_q.bias", "self_attention.linear_k.bias", "self_attention.linear_v.bias"}},
    {"attn.c_proj.weight", true, kStacked, {"self_attention.linear_proj.weight"}},
    {"attn.c_proj.bias", false, kStacked, {"self_attention.linear_proj.bias"}},
    {"ln_2.weight", false, kStacked, {"pre_mlp_layernorm.weight"}},
    {"ln_2.bias", false, kStacked, {"pre_mlp_layernorm.bias"}},
    {"mlp.c_fc.weight", true, kStacked, {"mlp.linear_fc1.weight"}},
    {"mlp.c_fc.bias", false, kStacked, {"mlp.linear_fc1.bias"}},
    {"mlp.c_proj.weight", true, kStacked, {"mlp.linear_fc2.weight"}},
    {"mlp.c_proj.bias", false, kStacked, {"mlp.linear_fc2.bias"}},
};
constexpr LayoutRow kGpt2After[] = {
    {"transformer.ln_f.weight", false, kStacked, {"decoder.final_layernorm.weight"}},
    {"transformer.ln_f.bias", false, kStacked, {"decoder.final_layernorm.bias"}},
    {"lm_head.weight", false, kStacked, {"output_layer.weight"}},
};

constexpr LayoutRow kLlamaBefore[] = {
    {"model.embed_tokens.weight", false, kStacked, {"embedding.word_embeddings.weight"}},
};
constexpr LayoutRow kLlamaLayer[] = {
    {"input_layernorm.weight", false, kStacked, {"input_layernorm.weight"}},
    {"self_attn.q_proj.weight", false, kStacked, {"self_attention.linear_q.weight"}},
    {"self_attn.q_proj.bias", false, kStacked, {"self_attention.linear_q.bias"}},
    {"self_attn.k_proj.weight", false, kStacked, {"self_attention.linear_k.weight"}},
    {"self_attn.k_proj.bias", false, kStacked, {"self_attention.linear_k.bias"}},
    {"self_attn.v_proj.weight", false, kStacked, {"self_attention.linear_v.weight"}},
    {"self_attn.v_proj.bias", false, kStacked, {"self_attention.linear_v.bias"}},
    {"self_attn.q_norm.weight", false, kStacked, {"self_attention.q_layernorm.weight"}},
    {"self_attn.k_norm.weight", false, kStacked, {"self_attention.k_layernorm.weight"}},
    {"self_attn.o_proj.weight", false, kStacked, {"self_attention.linear_proj.weight"}},
    {"self_attn.o_proj.bias", false, kStacked, {"self_attention.linear_proj.bias"}},
    {"post_attention_layernorm.weight", false, kStacked, {"pre_mlp_layernorm.weight"}},
    {"mlp.gate_proj.weight", false, kStacked, {"mlp.linear_gate.weight"}},
    {"mlp.gate_proj.bias", false, kStacked, {"mlp.linear_gate.bias"}},
    {"mlp.up_proj.weight", false, kStacked, {"mlp.linear_up.weight"}},
    {"mlp.up_proj.bias", false, kStacked, {"mlp.linear_up.bias"}},
    {"mlp.down_proj.weight", false, kStacked, {"mlp.linear_fc2.weight"}},
    {"mlp.down_proj.bias", false, kStacked, {"mlp.linear_fc2.bias"}},
};
// Latent attention: the rows of a head in q, q_b and kv_b stand as Megatron has them.
constexpr LayoutRow kDeepseekLayer[] = {
    {"input_layernorm.weight", false, kStacked, {"input_layernorm.weight"}},
    {"self_attn.q_proj.weight", false, kStacked, {"self_attention.linear_q_proj.weight"}},
    {"self_attn.q_a_proj.weight", false, kStacked, {"self_attention.linear_q_down_proj.weight"}},
    {"self_attn.q_a_layernorm.weight", false, kStacked, {"self_attention.q_layernorm.weight"}},
    {"self_attn.q_b_proj.weight", false, kStacked, {"self_attention.linear_q_up_proj.weight"}},
    {"self_attn.kv_a_proj_with_mqa.weight", false, kStacked, {"self_attention.linear_kv_down_proj.weight"}},
    {"self_attn.kv_a_layernorm.weight", false, kStacked, {"self_attention.kv_layernorm.weight"}},
    {"self_attn.kv_b_proj.weight", false, kStacked, {"self_attention.linear_kv_up_proj.weight"}},
    {"self_attn.o_proj.weight", false, kStacked, {"self_attention.linear_proj.weight"}},
    {"post_attention_layernorm.weight", false, kStacked, {"pre_mlp_layernorm.weight"}},
    {"mlp.gate_proj.weight", false, kStacked, {"mlp.linear_gate.weight"}},
    {"mlp.up_proj.weight", false, kStacked, {"mlp.linear_up.weight"}},
    {"mlp.down_proj.weight", false, kStacked, {"mlp.linear_fc2.weight"}},
};
constexpr LayoutRow kMixtralMixture[] = {
    {"block_sparse_moe.gate.weight", false, kStacked, {"mlp.router.weight"}},
};
constexpr LayoutRow kMixtralExpert[] = {
    {"w1.weight", false, kStacked, {"linear_gate.weight"}},
    {"w3.weight", false, kStacked, {"linear_up.weight"}},
    {"w2.weight", false, kStacked, {"linear_fc2.weight"}},
};
// Qwen3-MoE's and DeepSeek-V3's.
constexpr LayoutRow kMixture[] = {
    {"mlp.gate.weight", false, kStacked, {"mlp.router.weight"}},
    {"mlp.gate.e_score_correction_bias", false, kStacked, {"mlp.router.expert_bias"}},
    {"mlp.shared_experts.gate_proj.weight", false, kStacked, {"mlp.shared_experts.linear_gate.weight"}},
    {"mlp.shared_experts.up_proj.weight", false, kStacked, {"mlp.shared_experts.linear_up.weight"}},
    {"mlp.shared_experts.down_proj.weight", false, kStacked, {"mlp.shared_experts.linear_fc2.weight"}},
};
constexpr LayoutRow kExpert[] = {
    {"gate_proj.weight", false, kStacked, {"linear_gate.weight"}},
    {"up_proj.weight", false, kStacked, {"linear_up.weight"}},
    {"down_proj.weight", false, kStacked, {"linear_fc2.weight"}},
};
constexpr LayoutRow kLlamaAfter[] = {
    {"model.norm.weight", false, kStacked, {"decoder.final_layernorm.weight"}},
    {"lm_head.weight", false, kStacked, {"output_layer.weight"}},
};

std::vector<std::string> gpt2_obstacles(const ModelConfig& c) {
  std::vector<std::string> list;
  const auto add = [&](std::string option, const char* has) {
    list.push_back(
        fmt::format("{}: among Hugging Face models with learned positions GPT-2 has {}", option, has));
  };
  if (c.normalization != Normalization::kLayerNorm) add("--normalization RMSNorm", "LayerNorm");
  if (c.gated) add("--swiglu", "a plain feed-forward layer");
  if (!c.add_bias_linear) add("--disable-bias-linear", "biases");
  if (c.num_query_groups != c.num_attention_heads) {
    add(fmt::format("--num-query-groups {}", c.num_query_groups), "as many groups as heads");
  }
  if (c.kv_channels * c.num_attention_heads != c.hidden_size) {
    add(fmt::format("--kv-channels {}", c.kv_channels), "heads of --hidden-size / --num-attention-heads");
  }
  if (c.sliding_window > 0) add(fmt::format("--sliding-window {}", c.sliding_window), "no windows");
  if (c.latent.enabled) add("--multi-latent-attention", "keys and values of every head");
  if (c.qk_layernorm && !c.latent.enabled) add("--qk-layernorm", "no norms of queries and keys");
  return list;
}

// Mixtral, Qwen3-MoE (with --qk-layernorm) and DeepSeek-V3 (with --multi-latent-attention).
std::vector<std::string> mixture_obstacles(const ModelConfig& c) {
  std::vector<std::string> list;
  const MoeConfig& moe = c.moe;
  const auto add = [&](std::string option, const char* has) {
    list.push_back(fmt::format("{}: among Hugging Face models with experts and this attention there is {}",
                               option, has));
  };
  const std::vector<bool> layers = expert_layers(moe, c.num_layers);
  const auto first = std::find(layers.begin(), layers.end(), true);
  const bool all = first == layers.begin() && std::find(first, layers.end(), false) == layers.end();
  if (moe.expert_capacity_factor > 0) {
    add(fmt::format("--moe-expert-capacity-factor {}", moe.expert_capacity_factor), "none that drops tokens");
  }
  if (c.latent.enabled) {
    if (moe.score_function != RouterScoreFunction::kSigmoid || !moe.expert_bias) {
      add("a router without sigmoid scores and expert bias", "DeepSeek-V3, which has both");
    }
    if (std::find(first, layers.end(), false) != layers.end()) {
      add(fmt::format("--moe-layer-freq {}", moe.layer_freq), "DeepSeek-V3, whose dense layers come first");
    }
    if (moe.shared_expert_size % moe.ffn_hidden_size != 0) {
      add(fmt::format("--moe-shared-expert-intermediate-size {}", moe.shared_expert_size),
          "DeepSeek-V3, with a multiple of --moe-ffn-hidden-size");
    }
    return list;
  }
  if (moe.score_function == RouterScoreFunction::kSigmoid) add("sigmoid scores", "softmax");
  if (moe.num_groups > 0) add("--moe-router-num-groups", "none with groups");
  if (moe.scaling_factor != 1) add("--moe-router-topk-scaling-factor", "none that scales");
  if (moe.shared_expert_size > 0) add("--moe-shared-expert-intermediate-size", "none with a shared expert");
  if (c.qk_layernorm) return list;
  if (moe.pre_softmax) add("--moe-router-pre-softmax", "Mixtral, whose weights add up to 1");
  if (!all) add(fmt::format("--moe-layer-freq {}", moe.layer_freq), "Mixtral, with experts in all layers");
  if (c.add_qkv_bias) add("--add-qkv-bias", "Mixtral, without biases");
  return list;
}

std::vector<std::string> llama_obstacles(const ModelConfig& c) {
  std::vector<std::string> list;
  const auto add = [&](std::string option, const char* has) {
    list.push_back(fmt::format("{}: Hugging Face's Llama family has {}", option, has));
  };
  if (c.position_embedding != PositionEmbedding::kRope) add("--position-embedding-type none", "rope");
  if (c.rotary_percent != 1) add(fmt::format("--rotary-percent {}", c.rotary_percent), "1");
  if (c.rotary_interleaved && !c.latent.enabled) add("--rotary-interleaved", "pairs half a head apart");
  if (c.normalization != Normalization::kRmsNorm) add("--normalization LayerNorm", "RMSNorm");
  if (!c.gated) add("a plain feed-forward layer", "a gated one (--swiglu)");
  if (c.sliding_window > 0 && (c.add_bias_linear || c.add_qkv_bias)) {
    add(fmt::format("biases with --sliding-window {}", c.sliding_window),
        "windows in Mistral alone, without biases");
  }
  if (c.latent.enabled && (c.sliding_window > 0 || c.add_bias_linear)) {
    add("--multi-latent-attention with biases or a window", "it in DeepSeek-V3 alone, without either");
  }
  if (c.moe.num_experts > 0) {
    const std::vector<std::string> own = mixture_obstacles(c);
    list.insert(list.end(), own.begin(), own.end());
  }
  if (c.qk_layernorm && !c.latent.enabled && (c.sliding_window > 0 || c.add_bias_linear || c.add_qkv_bias)) {
    add("--qk-layernorm with biases or a window", "these norms in Qwen 3 alone, without either");
  }
  return list;
}

}  // namespace

const char* name_of(HuggingFaceFamily family) {
  switch (family) {
    case HuggingFaceFamily::kGpt2:
      return "gpt2";
    case HuggingFaceFamily::kLlama:
      return "llama";
    case HuggingFaceFamily::kMistral:
      return "mistral";
    case HuggingFaceFamily::kQwen2:
      return "qwen2";
    case HuggingFaceFamily::kQwen3:
      return "qwen3";
    case HuggingFaceFamily::kDeepseekV3:
      return "deepseek_v3";
    case HuggingFaceFamily::kMixtral:
      return "mixtral";
    case HuggingFaceFamily::kQwen3Moe:
      return "qwen3_moe";
  }
  return "?";
}

std::vector<std::string> huggingface_obstacles(const ModelConfig& config) {
  const ModelConfig c = resolved(config);
  return c.position_embedding == PositionEmbedding::kLearnedAbsolute ? gpt2_obstacles(c) : llama_obstacles(c);
}

HuggingFaceFamily huggingface_family(const ModelConfig& config) {
  const std::vector<std::string> obstacles = huggingface_obstacles(config);
  if (!obstacles.empty()) throw ConfigError(obstacles);
  if (config.position_embedding == PositionEmbedding::kLearnedAbsolute) return HuggingFaceFamily::kGpt2;
  if (config.latent.enabled) return HuggingFaceFamily::kDeepseekV3;
  if (config.moe.num_experts > 0) {
    return config.qk_layernorm ? HuggingFaceFamily::kQwen3Moe : HuggingFaceFamily::kMixtral;
  }
  if (config.sliding_window > 0) return HuggingFaceFamily::kMistral;
  if (config.qk_layernorm) return HuggingFaceFamily::kQwen3;
  return config.add_qkv_bias && !config.add_bias_linear ? HuggingFaceFamily::kQwen2
                                                        : HuggingFaceFamily::kLlama;
}

const char* name_prefix(HuggingFaceFamily family) {
  return family == HuggingFaceFamily::kGpt2 ? "transformer." : "model.";
}

bool is_derived(const std::string& name) {
  for (const std::string_view ending : {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

TensorMap huggingface_map(const ModelConfig& config) {
  const HuggingFaceFamily family = huggingface_family(config);
  if (family == HuggingFaceFamily::kGpt2) {
    return make_tensor_map(config, {"transformer.h.{}.", kGpt2Before, kGpt2Layer, kGpt2After});
  }
  if (family == HuggingFaceFamily::kDeepseekV3) {
    return make_tensor_map(config, {"model.layers.{}.", kLlamaBefore, kDeepseekLayer, kLlamaAfter, kMixture,
                                    "mlp.experts.{}.", kExpert});
  }
  if (family == HuggingFaceFamily::kMixtral) {
    return make_tensor_map(config, {"model.layers.{}.", kLlamaBefore, kLlamaLayer, kLlamaAfter,
                                    kMixtralMixture, "block_sparse_moe.experts.{}.", kMixtralExpert});
  }
  return make_tensor_map(config, {"model.layers.{}.", kLlamaBefore, kLlamaLayer, kLlamaAfter, kMixture,
                                  "mlp.experts.{}.", kExpert});
}

}  // namespace weft
