// ModelConfig: the numbers of a GPT-family model under Megatron's option names. What the user types, presets
// hold, checkpoints store and Hugging Face configs map to. spec.hpp turns it into a ModelSpec.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/latent_config.hpp"
#include "model/moe_config.hpp"
#include "ops/activation.hpp"

namespace weft {

enum class PositionEmbedding { kLearnedAbsolute, kRope, kNone };
enum class Normalization { kLayerNorm, kRmsNorm };

// How rotary frequencies are changed for contexts longer than the ones trained on.
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kYarn };
  Kind kind = Kind::kNone;
  double factor = 8;                                     // --rope-scaling-factor
  double low_freq_factor = 1;                            // Llama 3
  double high_freq_factor = 4;                           // Llama 3
  std::int64_t original_max_position_embeddings = 8192;  // Llama 3 and YaRN: the context trained on
  // YaRN (Peng et al. 2023): channels that turn more than beta_fast times in the original context stay, those
  // that turn less than beta_slow times are slowed by `factor`, in between it is blended over channel
  // numbers.
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;  // the borders of the blend are whole channel numbers
  // cos and sin are multiplied by m(mscale) / m(mscale_all_dim), m(x) = 0.1 x ln(factor) + 1; with
  // attention_factor above 0 by that instead. Latent attention also multiplies its scores by
  // m(mscale_all_dim)^2.
  double mscale = 1, mscale_all_dim = 0;
  double attention_factor = 0;
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_query_groups = 0;  // 0: num_attention_heads (no grouped queries)
  std::int64_t kv_channels = 0;       // head size; 0: hidden_size / num_attention_heads
  std::int64_t sliding_window = 0;    // keys that a query sees, its own the last of them; 0: all before it
  std::int64_t ffn_hidden_size = 0;   // 0: 4h; gated units: 8h/3 cut down to a multiple of 64, at least 64
  std::int64_t vocab_size = 0;        // unpadded
  std::int64_t make_vocab_size_divisible_by =
      128;  // padding, per tensor-parallel rank; never changes a number
  std::int64_t max_position_embeddings = 0;

  PositionEmbedding position_embedding = PositionEmbedding::kLearnedAbsolute;
  double rotary_base = 10000;
  double rotary_percent = 1;
  bool rotary_interleaved = false;
  RopeScaling rope_scaling;

  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  ops::Activation activation = ops::Activation::kGeluTanh;
  bool gated = false;           // --swiglu: gated unit with silu
  bool add_bias_linear = true;  // biases of all linear layers but the output layer
  bool add_qkv_bias = false;    // bias of qkv although add_bias_linear is off
  bool qk_layernorm = false;    // a norm over each head of the queries and of the keys, before the rotation
  LatentConfig latent;          // latent attention: num_query_groups and kv_channels follow from it
  bool tied = true;             // the output layer shares the word embeddings

  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double init_method_std = 0.02;

  MoeConfig moe;

  bool operator==(const ModelConfig&) const = default;
};

// Fills every "0: ..." default in. Idempotent.
ModelConfig resolved(ModelConfig config);
// Every problem of the numbers themselves (hidden not divisible by heads, ...), named by Megatron's options;
// empty: fine.
std::vector<std::string> problems_of(const ModelConfig& config);

// One JSON object, every field; and back (a ConfigError names an unknown or ill-typed field).
std::string to_json(const ModelConfig& config);
ModelConfig model_config_from_json(const std::string& text);

// Parameters of the model, and floating-point operations per token of a forward and backward pass over
// sequences of `seq_length` by the field's convention: 6 N + 12 L A S with N the weights used in matrix
// products (a tied embedding once; of experts those that one token uses), A = heads · head size (of latent
// attention the mean of a query's and a value's), causal attention not halved.
std::int64_t parameter_count(const ModelConfig& config);
// Of them those of experts.
std::int64_t expert_parameter_count(const ModelConfig& config);
double flops_per_token(const ModelConfig& config, std::int64_t seq_length);

}  // namespace weft
