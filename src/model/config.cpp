#include "model/config.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "core/check.hpp"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

template <class Enum>
struct EnumName {
  Enum value;
  const char* name;
};

// Megatron's spelling, where it has one.
constexpr std::array kPositionNames = {
    EnumName<PositionEmbedding>{PositionEmbedding::kLearnedAbsolute, "learned_absolute"},
    EnumName<PositionEmbedding>{PositionEmbedding::kRope, "rope"},
    EnumName<PositionEmbedding>{PositionEmbedding::kNone, "none"},
};
constexpr std::array kNormalizationNames = {
    EnumName<Normalization>{Normalization::kLayerNorm, "LayerNorm"},
    EnumName<Normalization>{Normalization::kRmsNorm, "RMSNorm"},
};
constexpr std::array kScalingNames = {
    EnumName<RopeScaling::Kind>{RopeScaling::Kind::kNone, "none"},
    EnumName<RopeScaling::Kind>{RopeScaling::Kind::kLinear, "linear"},
    EnumName<RopeScaling::Kind>{RopeScaling::Kind::kLlama3, "llama3"},
    EnumName<RopeScaling::Kind>{RopeScaling::Kind::kYarn, "yarn"},
};
constexpr std::array kScoreNames = {
    EnumName<RouterScoreFunction>{RouterScoreFunction::kSoftmax, "softmax"},
    EnumName<RouterScoreFunction>{RouterScoreFunction::kSigmoid, "sigmoid"},
};
constexpr std::array kRouterDtypeNames = {
    EnumName<RouterDtype>{RouterDtype::kFp32, "fp32"},
    EnumName<RouterDtype>{RouterDtype::kFp64, "fp64"},
};
constexpr std::array kBalancingNames = {
    EnumName<LoadBalancing>{LoadBalancing::kNone, "none"},
    EnumName<LoadBalancing>{LoadBalancing::kAuxLoss, "aux_loss"},
    EnumName<LoadBalancing>{LoadBalancing::kSequenceAuxLoss, "seq_aux_loss"},
};
constexpr std::array kDropNames = {
    EnumName<TokenDropPolicy>{TokenDropPolicy::kProbabilities, "probs"},
    EnumName<TokenDropPolicy>{TokenDropPolicy::kPosition, "position"},
};
constexpr std::array kDispatcherNames = {
    EnumName<TokenDispatcher>{TokenDispatcher::kAllToAll, "alltoall"},
    EnumName<TokenDispatcher>{TokenDispatcher::kAllGather, "allgather"},
};

const auto& names_of(RouterScoreFunction) {
  return kScoreNames;
}
const auto& names_of(RouterDtype) {
  return kRouterDtypeNames;
}
const auto& names_of(LoadBalancing) {
  return kBalancingNames;
}
const auto& names_of(TokenDropPolicy) {
  return kDropNames;
}
const auto& names_of(TokenDispatcher) {
  return kDispatcherNames;
}
const auto& names_of(PositionEmbedding) {
  return kPositionNames;
}
const auto& names_of(Normalization) {
  return kNormalizationNames;
}
const auto& names_of(RopeScaling::Kind) {
  return kScalingNames;
}
const auto& names_of(ops::Activation) {
  return ops::kActivations;
}

// Calls visit(name, member) for every field: the one list that writing and reading share.
template <class Config, class Visit>
void for_each_field(Config& c, Visit&& visit) {
  visit("num_layers", c.num_layers);
  visit("hidden_size", c.hidden_size);
  visit("num_attention_heads", c.num_attention_heads);
  visit("num_query_groups", c.num_query_groups);
  visit("kv_channels", c.kv_channels);
  visit("sliding_window", c.sliding_window);
  visit("ffn_hidden_size", c.ffn_hidden_size);
  visit("vocab_size", c.vocab_size);
  visit("make_vocab_size_divisible_by", c.make_vocab_size_divisible_by);
  visit("max_position_embeddings", c.max_position_embeddings);
  visit("position_embedding_type", c.position_embedding);
  visit("rotary_base", c.rotary_base);
  visit("rotary_percent", c.rotary_percent);
  visit("rotary_interleaved", c.rotary_interleaved);
  visit("rope_scaling_type", c.rope_scaling.kind);
  visit("rope_scaling_factor", c.rope_scaling.factor);
  visit("rope_scaling_low_freq_factor", c.rope_scaling.low_freq_factor);
  visit("rope_scaling_high_freq_factor", c.rope_scaling.high_freq_factor);
  visit("rope_scaling_original_max_position_embeddings", c.rope_scaling.original_max_position_embeddings);
  visit("rope_scaling_beta_fast", c.rope_scaling.beta_fast);
  visit("rope_scaling_beta_slow", c.rope_scaling.beta_slow);
  visit("rope_scaling_truncate", c.rope_scaling.truncate);
  visit("rope_scaling_mscale", c.rope_scaling.mscale);
  visit("rope_scaling_mscale_all_dim", c.rope_scaling.mscale_all_dim);
  visit("rope_scaling_attention_factor", c.rope_scaling.attention_factor);
  visit("normalization", c.normalization);
  visit("norm_epsilon", c.norm_epsilon);
  visit("activation", c.activation);
  visit("gated", c.gated);
  visit("add_bias_linear", c.add_bias_linear);
  visit("add_qkv_bias", c.add_qkv_bias);
  visit("qk_layernorm", c.qk_layernorm);
  visit("multi_latent_attention", c.latent.enabled);
  visit("q_lora_rank", c.latent.q_lora_rank);
  visit("kv_lora_rank", c.latent.kv_lora_rank);
  visit("qk_head_dim", c.latent.qk_head_dim);
  visit("qk_pos_emb_head_dim", c.latent.qk_pos_emb_head_dim);
  visit("v_head_dim", c.latent.v_head_dim);
  visit("tied", c.tied);
  visit("hidden_dropout", c.hidden_dropout);
  visit("attention_dropout", c.attention_dropout);
  visit("init_method_std", c.init_method_std);
  visit("num_experts", c.moe.num_experts);
  visit("moe_layer_freq", c.moe.layer_freq);
  visit("moe_ffn_hidden_size", c.moe.ffn_hidden_size);
  visit("moe_router_topk", c.moe.topk);
  visit("moe_router_score_function", c.moe.score_function);
  visit("moe_router_pre_softmax", c.moe.pre_softmax);
  visit("moe_router_topk_scaling_factor", c.moe.scaling_factor);
  visit("moe_router_num_groups", c.moe.num_groups);
  visit("moe_router_group_topk", c.moe.group_topk);
  visit("moe_router_enable_expert_bias", c.moe.expert_bias);
  visit("moe_router_bias_update_rate", c.moe.bias_update_rate);
  visit("moe_router_dtype", c.moe.router_dtype);
  visit("moe_router_load_balancing_type", c.moe.load_balancing);
  visit("moe_aux_loss_coeff", c.moe.aux_loss_coeff);
  visit("moe_z_loss_coeff", c.moe.z_loss_coeff);
  visit("moe_expert_capacity_factor", c.moe.expert_capacity_factor);
  visit("moe_token_drop_policy", c.moe.token_drop_policy);
  visit("moe_pad_expert_input_to_capacity", c.moe.pad_to_capacity);
  visit("moe_shared_expert_intermediate_size", c.moe.shared_expert_size);
  visit("moe_token_dispatcher_type", c.moe.dispatcher);
}

template <class T>
Json field_to_json(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    for (const auto& entry : names_of(value)) {
      if (entry.value == value) return entry.name;
    }
    WEFT_CHECK(false, "enumerator {} has no name", static_cast<int>(value));
  } else {
    return value;
  }
}

// Sets `value`, or returns what was expected instead.
template <class T>
std::string field_from_json(const Json& json, T& value) {
  if constexpr (std::is_enum_v<T>) {
    std::string choices;
    for (const auto& entry : names_of(value)) {
      if (json.is_string() && json.get_ref<const std::string&>() == entry.name) {
        value = entry.value;
        return {};
      }
      choices += fmt::format("{}\"{}\"", choices.empty() ? "" : ", ", entry.name);
    }
    return "one of " + choices;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) return "true or false";
    value = json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    // Values above the signed range would wrap in get().
    if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<std::uint64_t>() >> 63 != 0)) {
      return "an integer";
    }
    value = json.get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) return "a text";
    value = json.get<T>();
  } else {
    if (!json.is_number()) return "a number";
    value = json.get<T>();
  }
  return {};
}

std::int64_t quotient_or_zero(std::int64_t a, std::int64_t b) {
  return b > 0 ? a / b : 0;
}

template <class Number>
Number latent_weights(const ModelConfig& c) {
  const LatentConfig& l = c.latent;
  const auto h = static_cast<Number>(c.hidden_size), heads = static_cast<Number>(c.num_attention_heads),
             q = static_cast<Number>(l.query_dim()), v = static_cast<Number>(l.v_head_dim),
             q_rank = static_cast<Number>(l.q_lora_rank), kv_rank = static_cast<Number>(l.kv_lora_rank);
  const Number queries = l.q_lora_rank > 0 ? q_rank * (h + heads * q) : h * heads * q;
  const Number down = h * (kv_rank + static_cast<Number>(l.qk_pos_emb_head_dim));
  return queries + down + kv_rank * heads * (static_cast<Number>(l.qk_head_dim) + v) + heads * v * h;
}

// Weights that stand in matrix products (biases and norms apart), of attention in one layer and of all
// feed-forward networks, with `experts` of each mixture.
std::int64_t attention_weights(const ModelConfig& c) {
  const std::int64_t heads = c.num_attention_heads * c.kv_channels,
                     groups = c.num_query_groups * c.kv_channels;
  return c.latent.enabled ? latent_weights<std::int64_t>(c)
                          : c.hidden_size * (heads + 2 * groups) + heads * c.hidden_size;
}
std::int64_t matrix_weights(const ModelConfig& c, std::int64_t experts) {
  const std::int64_t of_width = (c.gated ? 3 : 2) * c.hidden_size;
  std::int64_t sum = c.num_layers * attention_weights(c);
  for (const bool mixture : expert_layers(c.moe, c.num_layers)) {
    sum += mixture ? of_width * (experts * c.moe.ffn_hidden_size + c.moe.shared_expert_size) +
                         c.moe.num_experts * c.hidden_size
                   : of_width * c.ffn_hidden_size;
  }
  return sum;
}

// Collects what is wrong with a configuration.
class Problems {
 public:
  explicit Problems(const ModelConfig& config) : c_(config) {}

  std::vector<std::string> collect() {
    sizes();
    if (list_.empty() && c_.latent.enabled) latent();
    if (list_.empty()) relations();  // they divide by sizes
    rotary();
    fractions();
    experts();
    if (list_.empty()) magnitude();
    return std::move(list_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    list_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void positive(const char* option, std::int64_t value, bool zero_means_default = false) {
    constexpr std::int64_t kLargest = (std::int64_t{1} << 31) - 1;
    if (value > kLargest) {
      add("{} {} is too large: at most {} is possible", option, value, kLargest);
    } else if (value < 0 || (value == 0 && !zero_means_default)) {
      add("{} {} must be at least 1", option, value);
    }
  }

  void sizes() {
    positive("--num-layers", c_.num_layers);
    positive("--hidden-size", c_.hidden_size);
    positive("--num-attention-heads", c_.num_attention_heads);
    positive("--num-query-groups", c_.num_query_groups, true);
    positive("--kv-channels", c_.kv_channels, true);
    positive("--sliding-window", c_.sliding_window, true);
    positive("--ffn-hidden-size", c_.ffn_hidden_size, true);
    positive("--vocab-size", c_.vocab_size);
    positive("--make-vocab-size-divisible-by", c_.make_vocab_size_divisible_by);
    // Without learned positions it limits nothing and may be unknown.
    positive("--max-position-embeddings", c_.max_position_embeddings,
             c_.position_embedding != PositionEmbedding::kLearnedAbsolute);
  }

  void relations() {
    const std::int64_t h = c_.hidden_size, heads = c_.num_attention_heads, groups = c_.num_query_groups;
    if (c_.kv_channels == 0 && h % heads != 0 && !c_.latent.enabled) {
      const std::int64_t below = h / heads * heads;
      add("--hidden-size {} is not divisible by --num-attention-heads {}: use --hidden-size {}{}, or give "
          "the head "
          "size with --kv-channels",
          h, heads, below > 0 ? fmt::format("{} or ", below) : "", below + heads);
    }
    if (groups > 0 && heads % groups != 0) {
      std::string divisors;
      for (std::int64_t d = 1; d <= heads && divisors.size() < 60; ++d) {
        if (heads % d == 0) divisors += fmt::format("{}{}", d == 1 ? "" : ", ", d);
      }
      add("--num-attention-heads {} is not divisible by --num-query-groups {}: use --num-query-groups {}",
          heads, groups, divisors);
    }
  }

  void latent() {
    const LatentConfig& l = c_.latent;
    positive("--q-lora-rank", l.q_lora_rank, true);
    positive("--kv-lora-rank", l.kv_lora_rank);
    positive("--qk-head-dim", l.qk_head_dim);
    positive("--qk-pos-emb-head-dim", l.qk_pos_emb_head_dim);
    positive("--v-head-dim", l.v_head_dim);
    if (c_.position_embedding != PositionEmbedding::kRope || c_.rotary_percent != 1) {
      add("--multi-latent-attention rotates --qk-pos-emb-head-dim channels: it needs "
          "--position-embedding-type rope "
          "and --rotary-percent 1");
    }
    if (l.qk_pos_emb_head_dim % 2 != 0) {
      add("--qk-pos-emb-head-dim {} must be even: rotation turns pairs", l.qk_pos_emb_head_dim);
    }
    if (c_.num_query_groups != 0 && c_.num_query_groups != c_.num_attention_heads) {
      add("--num-query-groups {} with --multi-latent-attention: every one of --num-attention-heads {} has "
          "keys and "
          "values of its own",
          c_.num_query_groups, c_.num_attention_heads);
    }
    if (c_.kv_channels != 0 && c_.kv_channels != l.core_dim()) {
      add("--kv-channels {} with --multi-latent-attention: --qk-head-dim, --qk-pos-emb-head-dim and "
          "--v-head-dim say "
          "the sizes of heads",
          c_.kv_channels);
    }
    if (c_.add_qkv_bias) add("--add-qkv-bias with --multi-latent-attention: its projections have no biases");
  }

  void rotary() {
    if (!(c_.rotary_percent > 0 && c_.rotary_percent <= 1)) {
      add("--rotary-percent {} must be above 0 and at most 1", c_.rotary_percent);
      return;
    }
    if (c_.position_embedding != PositionEmbedding::kRope) return;
    scaling();
    if (!(c_.rotary_base > 0)) add("--rotary-base {} must be above 0", c_.rotary_base);
    const std::int64_t head =
        c_.kv_channels > 0 ? c_.kv_channels : quotient_or_zero(c_.hidden_size, c_.num_attention_heads);
    const auto rotated = static_cast<std::int64_t>(static_cast<double>(head) * c_.rotary_percent);
    if (head > 0 && !c_.latent.enabled && (rotated < 2 || rotated % 2 != 0)) {
      add("--position-embedding-type rope turns pairs: --kv-channels {} times --rotary-percent {} gives {} "
          "rotated "
          "channels, which must be an even number of at least 2",
          head, c_.rotary_percent, rotated);
    }
  }

  void scaling() {
    const RopeScaling& scaling = c_.rope_scaling;
    if (scaling.kind == RopeScaling::Kind::kNone) return;
    if (!(scaling.factor > 0)) add("--rope-scaling-factor {} must be above 0", scaling.factor);
    if (scaling.kind == RopeScaling::Kind::kYarn) yarn(scaling);
    if (scaling.kind != RopeScaling::Kind::kLlama3) return;
    if (!(scaling.low_freq_factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor)) {
      add("rope scaling llama3: low_freq_factor {} must be above 0 and below high_freq_factor {}",
          scaling.low_freq_factor, scaling.high_freq_factor);
    }
    if (scaling.original_max_position_embeddings < 1) {
      add("rope scaling llama3: original_max_position_embeddings {} must be at least 1",
          scaling.original_max_position_embeddings);
    }
  }

  void yarn(const RopeScaling& s) {
    if (!(s.beta_slow > 0 && s.beta_fast > s.beta_slow)) {
      add("rope scaling yarn: --beta-slow {} must be above 0 and below --beta-fast {}", s.beta_slow,
          s.beta_fast);
    }
    if (s.original_max_position_embeddings < 1) {
      add("rope scaling yarn: original_max_position_embeddings {} must be at least 1",
          s.original_max_position_embeddings);
    }
    if (!(s.mscale >= 0 && s.mscale_all_dim >= 0 && s.attention_factor >= 0)) {
      add("rope scaling yarn: --mscale {}, --mscale-all-dim {} and the attention factor {} must be at least "
          "0",
          s.mscale, s.mscale_all_dim, s.attention_factor);
    }
    if (!(c_.rotary_base > 1)) add("rope scaling yarn: --rotary-base {} must be above 1", c_.rotary_base);
  }

  void fractions() {
    const auto dropout = [&](const char* option, double value) {
      if (!(value >= 0 && value < 1)) add("{} {} must be at least 0 and below 1", option, value);
    };
    dropout("--hidden-dropout", c_.hidden_dropout);
    dropout("--attention-dropout", c_.attention_dropout);
    if (!(c_.norm_epsilon > 0 && c_.norm_epsilon < 1)) {
      add("--norm-epsilon {} must be above 0 and below 1", c_.norm_epsilon);
    }
    if (!(c_.init_method_std >= 0 && c_.init_method_std < 1e3)) {
      add("--init-method-std {} must be at least 0 and finite", c_.init_method_std);
    }
  }

  void experts() {
    positive("--moe-ffn-hidden-size", c_.moe.ffn_hidden_size, true);
    positive("--moe-shared-expert-intermediate-size", c_.moe.shared_expert_size, true);
    for (std::string& problem : problems_of(c_.moe, c_.num_layers)) list_.push_back(std::move(problem));
    if (c_.moe.num_experts > 0 && c_.add_bias_linear) {
      add("--num-experts {}: experts have no biases; add --disable-bias-linear", c_.moe.num_experts);
    }
  }

  // Sizes that are possible one by one may still multiply beyond what 64 bits count.
  void magnitude() {
    const ModelConfig c = resolved(c_);
    const double h = static_cast<double>(c.hidden_size);
    const double heads = static_cast<double>(c.num_attention_heads) * static_cast<double>(c.kv_channels);
    const double experts =
        static_cast<double>(c.moe.num_experts) * static_cast<double>(c.moe.ffn_hidden_size);
    const double layer = h * (4 * heads + 3 * (static_cast<double>(c.ffn_hidden_size) + experts)) +
                         (c.latent.enabled ? latent_weights<double>(c) : 0);
    const double total =
        static_cast<double>(c.num_layers) * layer +
        h * (2 * static_cast<double>(c.vocab_size) + static_cast<double>(c.max_position_embeddings));
    if (total > 1e16) {
      add("--num-layers {}, --hidden-size {}, --num-attention-heads {}, --kv-channels {}, --ffn-hidden-size "
          "{} and "
          "--vocab-size {} make a model of {:.2g} parameters: check for a slip in one of them",
          c.num_layers, c.hidden_size, c.num_attention_heads, c.kv_channels, c.ffn_hidden_size, c.vocab_size,
          total);
    }
  }

  const ModelConfig& c_;
  std::vector<std::string> list_;
};

}  // namespace

ModelConfig resolved(ModelConfig c) {
  if (c.num_query_groups == 0) c.num_query_groups = c.num_attention_heads;
  if (c.latent.enabled) {
    c.kv_channels = c.latent.core_dim();
    c.qk_layernorm = true;
  }
  if (c.kv_channels == 0) c.kv_channels = quotient_or_zero(c.hidden_size, c.num_attention_heads);
  if (c.ffn_hidden_size == 0) {
    // Gated units have three matrices in place of two; Megatron cuts 8h/3 down to a multiple of 64.
    constexpr std::int64_t kMultiple = 64;
    c.ffn_hidden_size = c.gated ? std::max(c.hidden_size * 8 / 3 / kMultiple, std::int64_t{1}) * kMultiple
                                : 4 * c.hidden_size;
  }
  if (c.moe.num_experts > 0) {
    if (c.moe.ffn_hidden_size == 0) c.moe.ffn_hidden_size = c.ffn_hidden_size;
    if (problems_of(c.moe, c.num_layers).empty())
      c.moe.layer_freq = layer_freq_of(expert_layers(c.moe, c.num_layers));
  }
  return c;
}

std::vector<std::string> problems_of(const ModelConfig& config) {
  return Problems(config).collect();
}

std::string to_json(const ModelConfig& config) {
  Json object = Json::object();
  for_each_field(config, [&](const char* name, const auto& value) { object[name] = field_to_json(value); });
  return object.dump(2);
}

ModelConfig model_config_from_json(const std::string& text) {
  Json object;
  try {
    object = Json::parse(text);
  } catch (const Json::exception& e) {
    config_fail("model configuration: not valid JSON: {}", e.what());
  }
  if (!object.is_object()) config_fail("model configuration: a JSON {}, not an object", object.type_name());
  ModelConfig config;
  std::vector<std::string> problems;
  std::set<std::string> known;
  for_each_field(config, [&](const char* name, auto& value) {
    known.insert(name);
    const auto field = object.find(name);
    if (field == object.end()) return;  // written before the field existed: its default
    const std::string expected = field_from_json(*field, value);
    if (!expected.empty()) {
      problems.push_back(
          fmt::format("model configuration: {} is {}, but must be {}", name, field->dump(), expected));
    }
  });
  for (const auto& [name, value] : object.items()) {
    if (!known.contains(name)) {
      problems.push_back(fmt::format("model configuration: unknown field \"{}\" ({})", name, value.dump()));
    }
  }
  if (!problems.empty()) throw ConfigError(problems);
  return config;
}

std::int64_t parameter_count(const ModelConfig& config) {
  const ModelConfig c = resolved(config);
  const std::int64_t h = c.hidden_size;
  const std::int64_t vectors = c.normalization == Normalization::kLayerNorm ? 2 : 1;  // of a norm
  const std::int64_t norm = vectors * h;
  const std::int64_t qkv = (c.num_attention_heads + 2 * c.num_query_groups) * c.kv_channels;
  std::int64_t biases = 0;
  if ((c.add_bias_linear || c.add_qkv_bias) && !c.latent.enabled) biases += qkv;
  if (c.add_bias_linear) biases += h + (c.gated ? 2 : 1) * c.ffn_hidden_size + h;
  std::int64_t count = matrix_weights(c, c.moe.num_experts) + c.num_layers * (biases + 2 * norm) + norm;
  if (c.qk_layernorm) {
    const std::int64_t sizes =
        c.latent.enabled ? c.latent.q_lora_rank + c.latent.kv_lora_rank : 2 * c.kv_channels;
    count += c.num_layers * vectors * sizes;
  }
  count += c.vocab_size * h * (c.tied ? 1 : 2);
  if (c.position_embedding == PositionEmbedding::kLearnedAbsolute) count += c.max_position_embeddings * h;
  return count;
}

std::int64_t expert_parameter_count(const ModelConfig& config) {
  const ModelConfig c = resolved(config);
  return matrix_weights(c, c.moe.num_experts) - matrix_weights(c, 0);
}

double flops_per_token(const ModelConfig& config, std::int64_t seq_length) {
  const ModelConfig c = resolved(config);
  const auto weights = static_cast<double>(matrix_weights(c, c.moe.topk)) +
                       static_cast<double>(c.vocab_size) * static_cast<double>(c.hidden_size);
  const std::int64_t keys = c.sliding_window > 0 ? std::min(seq_length, c.sliding_window) : seq_length;
  // Half of it for queries with keys, half with values.
  const double head = c.latent.enabled ? static_cast<double>(c.latent.query_dim() + c.latent.v_head_dim) / 2
                                       : static_cast<double>(c.kv_channels);
  const auto attention = static_cast<double>(c.num_layers) * static_cast<double>(c.num_attention_heads) *
                         head * static_cast<double>(keys);
  return 6 * weights + 12 * attention;
}

}  // namespace weft
