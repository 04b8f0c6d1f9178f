#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "core/check.hpp"
#include "core/log.hpp"
#include "interop/huggingface.hpp"
#include "interop/huggingface_family.hpp"
#include "io/atomic_file.hpp"
#include "model/rotary_table.hpp"

namespace weft {
namespace {

using Json = nlohmann::json;
using ops::Activation;

struct ActivationName {
  Activation activation;
  const char* name;
};
// The first name of each is the one written.
constexpr ActivationName kActivationNames[] = {
    {Activation::kGeluTanh, "gelu_new"},
    {Activation::kGeluTanh, "gelu_pytorch_tanh"},
    {Activation::kGeluTanh, "gelu_fast"},
    {Activation::kGeluTanh, "gelu_accurate"},
    {Activation::kGeluErf, "gelu"},
    {Activation::kGeluErf, "gelu_python"},
    {Activation::kSilu, "silu"},
    {Activation::kSilu, "swish"},
    {Activation::kRelu, "relu"},
    {Activation::kSquaredRelu, "relu2"},
    {Activation::kQuickGelu, "quick_gelu"},
};

// Fields that say nothing about the mathematics of a decoder, or that only name its default.
constexpr const char* kNeutral[] = {
    "_from_model_config",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "label2id",
    "max_length",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "prefix",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
};
// n_ctx repeats n_positions. Attention is always computed with the softmax in (at least) float, which is all
// that reorder_and_upcast_attn asks for.
constexpr const char* kNeutralGpt2[] = {
    "n_ctx",
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
};
// pretraining_tp cuts matrix products in pieces of the same sum; max_window_layers belongs to sliding
// windows.
constexpr const char* kNeutralLlama[] = {"max_window_layers", "pretraining_tp"};

// head_dim repeats qk_rope_head_dim, qk_head_dim is a sum; layers that predict further tokens are passed
// over.
constexpr const char* kNeutralDeepseek[] = {"head_dim", "qk_head_dim",    "num_nextn_predict_layers",
                                            "ep_size",  "aux_loss_alpha", "seq_aux"};
// How experts are balanced is the training's affair.
constexpr const char* kNeutralExperts[] = {"output_router_logits", "router_aux_loss_coef"};

// One JSON object whose fields are asked for by name. Remembers what nobody asked for, and collects what is
// wrong.
class Fields {
 public:
  Fields(const Json& object, std::string where, std::vector<std::string>& problems)
      : object_(object), where_(std::move(where)), problems_(problems) {}

  bool contains(const char* name) const { return object_.contains(name); }
  // The field, or null when it is absent or null.
  const Json& find(const char* name) {
    used_.insert(name);
    const auto field = object_.find(name);
    return field == object_.end() ? null_ : *field;
  }
  bool given(const char* name) { return !find(name).is_null(); }

  std::int64_t integer(const char* name, std::optional<std::int64_t> fallback = {}) {
    const Json& value = find(name);
    if (value.is_null()) return absent(name, fallback, std::int64_t{0});
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() >> 63 != 0)) {
      return wrong(name, value, "an integer"), 0;
    }
    return value.get<std::int64_t>();
  }
  double number(const char* name, std::optional<double> fallback = {}) {
    const Json& value = find(name);
    if (value.is_null()) return absent(name, fallback, 1.0);
    return value.is_number() ? value.get<double>() : (wrong(name, value, "a number"), 1.0);
  }
  bool boolean(const char* name, bool fallback) {
    const Json& value = find(name);
    if (value.is_null()) return fallback;
    return value.is_boolean() ? value.get<bool>() : (wrong(name, value, "true or false"), fallback);
  }
  std::string text(const char* name, const std::optional<std::string>& fallback = {}) {
    const Json& value = find(name);
    if (value.is_null()) return absent(name, fallback, std::string{});
    return value.is_string() ? value.get<std::string>() : (wrong(name, value, "a string"), std::string{});
  }
  Activation activation(const char* name, const char* fallback) {
    const std::string value = text(name, fallback);
    std::string choices;
    for (const ActivationName& entry : kActivationNames) {
      if (value == entry.name) return entry.activation;
      choices += fmt::format("{}{}", choices.empty() ? "" : ", ", entry.name);
    }
    problem("{} \"{}\" is not supported (known: {})", name, value, choices);
    return Activation::kSilu;
  }
  // Refuses any value but this one (and none at all).
  void only(const char* name, const Json& allowed, const char* why) {
    const Json& value = find(name);
    if (value.is_null() || value == allowed) return;
    problem("{} {} is not supported: {}", name, value.dump(), why);
  }
  template <std::size_t N>
  void neutral(const char* const (&names)[N]) {
    neutral_.insert(std::begin(names), std::end(names));
  }

  template <class... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(where_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  std::vector<std::string> unknown() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : object_.items()) {
      if (!used_.contains(name) && !neutral_.contains(name)) names.push_back(name);
    }
    return names;
  }
  bool used(const std::string& name) const { return used_.contains(name); }
  std::vector<std::string>& problems() { return problems_; }
  const std::string& where() const { return where_; }

 private:
  void wrong(const char* name, const Json& value, const char* expected) {
    problem("{} is {}, but must be {}", name, value.dump(), expected);
  }
  template <class T>
  T absent(const char* name, const std::optional<T>& fallback, T placeholder) {
    if (!fallback) problem("{} is missing", name);
    return fallback.value_or(placeholder);
  }

  const Json& object_;
  std::string where_;
  std::vector<std::string>& problems_;
  std::set<std::string> used_, neutral_;
  const Json null_;
};

struct Rope {
  std::optional<double> theta;
  RopeScaling scaling;
};

// `context` stands in for original_max_position_embeddings.
RopeScaling read_yarn(Fields& fields, std::int64_t context) {
  RopeScaling s{.kind = RopeScaling::Kind::kYarn};
  s.factor = fields.number("factor");
  s.original_max_position_embeddings = fields.integer("original_max_position_embeddings", context);
  s.beta_fast = fields.number("beta_fast", s.beta_fast);
  s.beta_slow = fields.number("beta_slow", s.beta_slow);
  s.truncate = fields.boolean("truncate", true);
  const double mscale = fields.number("mscale", 0);
  s.mscale_all_dim = fields.number("mscale_all_dim", 0);
  // One of them alone does not change the magnitude.
  if (mscale != 0 && s.mscale_all_dim != 0) {
    s.mscale = mscale;
  } else if (s.mscale_all_dim != 0) {
    s.attention_factor = rotary_magnitude({.kind = s.kind, .factor = s.factor});
  }
  s.attention_factor = fields.number("attention_factor", s.attention_factor);
  return s;
}

Json yarn_json(const RopeScaling& s) {
  Json object = {{"rope_type", "yarn"},
                 {"factor", s.factor},
                 {"original_max_position_embeddings", s.original_max_position_embeddings},
                 {"beta_fast", s.beta_fast},
                 {"beta_slow", s.beta_slow}};
  if (!s.truncate) object["truncate"] = false;
  const bool both = s.mscale != 0 && s.mscale_all_dim != 0;
  if (s.mscale_all_dim != 0) object["mscale_all_dim"] = s.mscale_all_dim;
  if (both) object["mscale"] = s.mscale;
  if (s.attention_factor > 0 || (!both && (s.mscale != 1 || s.mscale_all_dim != 0))) {
    object["attention_factor"] = rotary_magnitude(s);
  }
  return object;
}

// rope_parameters (transformers 5) or rope_scaling (transformers 4).
Rope read_rope_object(Fields& config, const char* name, std::int64_t context,
                      std::vector<std::string>& unknown) {
  Rope rope;
  const Json& object = config.find(name);
  if (!object.is_object()) {
    config.problem("{} is {}, but must be an object or null", name, object.dump());
    return rope;
  }
  Fields fields(object, config.where() + ": " + name, config.problems());
  if (fields.given("rope_theta")) rope.theta = fields.number("rope_theta");
  fields.only("partial_rotary_factor", 1.0, "these models rotate whole heads");
  std::string type = fields.text("rope_type", fields.text("type", "default"));
  if (fields.given("type") && fields.text("type") != type) {
    fields.problem("rope_type \"{}\" and type \"{}\" contradict each other", type, fields.text("type"));
  }
  if (type == "linear") {
    rope.scaling.kind = RopeScaling::Kind::kLinear;
    rope.scaling.factor = fields.number("factor");
  } else if (type == "llama3") {
    rope.scaling.kind = RopeScaling::Kind::kLlama3;
    rope.scaling.factor = fields.number("factor");
    rope.scaling.low_freq_factor = fields.number("low_freq_factor");
    rope.scaling.high_freq_factor = fields.number("high_freq_factor");
    rope.scaling.original_max_position_embeddings = fields.integer("original_max_position_embeddings");
  } else if (type == "yarn") {
    rope.scaling = read_yarn(fields, context);
  } else if (type != "default") {
    fields.problem("rope_type \"{}\" is not supported (known: default, linear, llama3, yarn)", type);
    return rope;
  }
  for (const std::string& field : fields.unknown()) {
    if (object[field].is_object()) {
      fields.problem("{} {}: rotary parameters per layer are not supported", field, object[field].dump());
    } else {
      unknown.push_back(fmt::format("{}.{}", name, field));
    }
  }
  return rope;
}

void read_rope(Fields& fields, ModelConfig& config, std::vector<std::string>& unknown) {
  fields.only("partial_rotary_factor", 1.0, "these models rotate whole heads");
  std::optional<double> theta;
  if (fields.given("rope_theta")) theta = fields.number("rope_theta");
  std::optional<RopeScaling> scaling;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!fields.given(name)) continue;
    const Rope rope = read_rope_object(fields, name, config.max_position_embeddings, unknown);
    if (rope.theta) {
      if (theta && *theta != *rope.theta) {
        fields.problem("rope_theta {} and {}.rope_theta {} contradict each other", *theta, name, *rope.theta);
      }
      theta = rope.theta;
    }
    if (scaling && *scaling != rope.scaling) {
      fields.problem("rope_parameters {} and rope_scaling {} contradict each other",
                     fields.find("rope_parameters").dump(), fields.find("rope_scaling").dump());
    }
    scaling = rope.scaling;
  }
  config.rotary_base = theta.value_or(10000);
  config.rope_scaling = scaling.value_or(RopeScaling{});
}

void read_common(Fields& fields, ModelConfig& config, bool tied) {
  fields.neutral(kNeutral);
  config.vocab_size = fields.integer("vocab_size");
  config.tied = fields.boolean("tie_word_embeddings", tied);
  config.init_method_std = fields.number("initializer_range", 0.02);
  fields.only("is_encoder_decoder", false, "only decoders are");
  fields.only("add_cross_attention", false, "only decoders without cross attention are");
  fields.only("pruned_heads", Json::object(), "pruned heads cannot be expressed");
  fields.only("quantization_config", nullptr, "export the model unquantized first");
}

ModelConfig read_gpt2(Fields& fields) {
  ModelConfig c;
  read_common(fields, c, true);
  fields.neutral(kNeutralGpt2);
  c.num_layers = fields.integer("n_layer");
  c.hidden_size = fields.integer("n_embd");
  c.num_attention_heads = fields.integer("n_head");
  c.ffn_hidden_size = fields.integer("n_inner", 4 * c.hidden_size);
  c.max_position_embeddings = fields.integer("n_positions");
  c.norm_epsilon = fields.number("layer_norm_epsilon", 1e-5);
  c.activation = fields.activation("activation_function", "gelu_new");
  c.attention_dropout = fields.number("attn_pdrop", 0.1);
  c.hidden_dropout = fields.number("resid_pdrop", 0.1);
  if (const double embedding = fields.number("embd_pdrop", 0.1); embedding != c.hidden_dropout) {
    fields.problem("embd_pdrop {} and resid_pdrop {} differ: one --hidden-dropout serves both", embedding,
                   c.hidden_dropout);
  }
  fields.only("scale_attn_weights", true, "attention is always scaled by 1/sqrt(head size)");
  fields.only("scale_attn_by_inverse_layer_idx", false, "attention is scaled alike in all layers");
  return c;
}

// DeepSeek-V3's attention, and layers without experts.
void read_deepseek(Fields& fields, ModelConfig& c) {
  fields.neutral(kNeutralDeepseek);
  c.latent.enabled = true;
  c.latent.q_lora_rank = fields.integer("q_lora_rank", 0);  // null: none
  c.latent.kv_lora_rank = fields.integer("kv_lora_rank", 512);
  c.latent.qk_head_dim = fields.integer("qk_nope_head_dim", 128);
  c.latent.qk_pos_emb_head_dim = fields.integer("qk_rope_head_dim", 64);
  c.latent.v_head_dim = fields.integer("v_head_dim", 128);
  c.rotary_interleaved = fields.boolean("rope_interleave", true);
  if (!fields.contains("q_lora_rank")) c.latent.q_lora_rank = 1536;
  const std::int64_t dense = fields.integer("first_k_dense_replace", 3),
                     every = fields.integer("moe_layer_freq", 1);
  MoeConfig moe;
  moe.num_experts = fields.integer("n_routed_experts", 256);
  moe.topk = fields.integer("num_experts_per_tok", 8);
  moe.ffn_hidden_size = fields.integer("moe_intermediate_size", 2048);
  moe.shared_expert_size = fields.integer("n_shared_experts", 1) * moe.ffn_hidden_size;
  moe.score_function = RouterScoreFunction::kSigmoid;
  moe.expert_bias = true;
  moe.num_groups = fields.integer("n_group", 8);
  moe.group_topk = fields.integer("topk_group", 4);
  if (moe.num_groups == 1) moe.num_groups = moe.group_topk = 0;
  moe.scaling_factor = fields.number("routed_scaling_factor", 2.5);
  fields.only("norm_topk_prob", true, "weights of the chosen experts add up to routed_scaling_factor");
  fields.only("scoring_func", "sigmoid", "scores are sigmoids");
  fields.only("topk_method", "noaux_tc", "experts are chosen with a bias and in groups");
  fields.only("moe_layer_freq", 1, "every layer after the dense ones has experts");
  if (dense < c.num_layers && every == 1) c.moe = moe;
  std::vector<bool> layers(static_cast<std::size_t>(c.num_layers), true);
  std::fill(layers.begin(), layers.begin() + std::max<std::int64_t>(dense, 0), false);
  if (c.moe.num_experts > 0) c.moe.layer_freq = layer_freq_of(layers);
}

void read_mixtral(Fields& fields, ModelConfig& c) {
  fields.neutral(kNeutralExperts);
  c.moe.num_experts = fields.integer("num_local_experts", 8);
  c.moe.topk = fields.integer("num_experts_per_tok", 2);
  c.moe.ffn_hidden_size = c.ffn_hidden_size;
  fields.only("router_jitter_noise", 0.0, "router inputs are not jittered");
}

void read_qwen3_moe(Fields& fields, ModelConfig& c) {
  fields.neutral(kNeutralExperts);
  const char* const count = fields.contains("num_experts") ? "num_experts" : "num_local_experts";
  c.moe.num_experts = fields.integer(count, 128);
  c.moe.topk = fields.integer("num_experts_per_tok", 8);
  c.moe.ffn_hidden_size = fields.integer("moe_intermediate_size", 768);
  c.moe.pre_softmax = !fields.boolean("norm_topk_prob", false);
  const std::int64_t step = std::max<std::int64_t>(fields.integer("decoder_sparse_step", 1), 1);
  std::vector<bool> layers;
  for (std::int64_t i = 0; i < c.num_layers; ++i) layers.push_back((i + 1) % step == 0);
  if (const Json& dense = fields.find("mlp_only_layers"); dense.is_array()) {
    for (const Json& layer : dense) {
      if (layer.is_number_unsigned() && layer.get<std::size_t>() < layers.size()) {
        layers[layer.get<std::size_t>()] = false;
      }
    }
  }
  c.moe.layer_freq = layer_freq_of(layers);
}

// Llama, and the families that are Llama with other switches.
ModelConfig read_llama(Fields& fields, const std::string& type, std::vector<std::string>& unknown) {
  ModelConfig c;
  read_common(fields, c, false);
  fields.neutral(kNeutralLlama);
  c.position_embedding = PositionEmbedding::kRope;
  c.normalization = Normalization::kRmsNorm;
  c.gated = true;
  c.hidden_dropout = 0;
  c.num_layers = fields.integer("num_hidden_layers");
  c.hidden_size = fields.integer("hidden_size");
  c.num_attention_heads = fields.integer("num_attention_heads");
  c.num_query_groups = fields.integer("num_key_value_heads", c.num_attention_heads);
  if (type == "deepseek_v3") {
    read_deepseek(fields, c);
  } else {
    c.kv_channels = fields.integer("head_dim", type == "qwen3" ? 128 : 0);
  }
  c.ffn_hidden_size = fields.integer("intermediate_size");
  c.max_position_embeddings = fields.integer("max_position_embeddings", 2048);
  c.norm_epsilon = fields.number("rms_norm_eps", 1e-6);
  c.activation = fields.activation("hidden_act", "silu");
  c.attention_dropout = fields.number("attention_dropout", 0);
  if (type == "mixtral") read_mixtral(fields, c);
  if (type == "qwen3_moe") read_qwen3_moe(fields, c);
  read_rope(fields, c, unknown);
  fields.only("rope_interleaved", false, "rotary pairs are half a head apart");

  if (type == "mistral") {
    // Unlike the others it has a window when it does not say so.
    const bool said = fields.contains("sliding_window");
    if (!said || !fields.find("sliding_window").is_null())
      c.sliding_window = fields.integer("sliding_window", 4096);
  } else if (type == "mixtral") {
    c.sliding_window = fields.integer("sliding_window", 0);
  } else if (fields.boolean("use_sliding_window", !type.starts_with("qwen") && type != "deepseek_v3")) {
    fields.only("sliding_window", nullptr, "attention of this model_type sees the whole sequence here");
  }
  (void)fields.find("sliding_window");  // without use_sliding_window it says nothing
  if (const Json& layers = fields.find("layer_types"); layers.is_array()) {
    for (const Json& layer : layers) {
      if (layer != "full_attention") fields.problem("layer_types {} is not supported", layer.dump());
    }
  }
  if (type == "qwen2") {
    c.add_bias_linear = false;
    c.add_qkv_bias = true;
    return c;
  }
  c.qk_layernorm = type == "qwen3" || type == "qwen3_moe";
  const bool attention_bias = fields.boolean("attention_bias", false),
             mlp_bias = fields.boolean("mlp_bias", false);
  if (attention_bias != mlp_bias) {
    fields.problem(
        "attention_bias {} with mlp_bias {} is not supported: biases of q, k, v and o come with those of "
        "gate, up and "
        "down, or not at all",
        attention_bias, mlp_bias);
  }
  c.add_bias_linear = attention_bias && mlp_bias;
  return c;
}

struct ParsedConfig {
  ModelConfig model;
  std::string type;
  std::vector<std::string> unknown;
  std::vector<std::string> kept;  // fields that are not about the mathematics, or unknown
};

Json parse_object(const std::string& text, const std::string& where) {
  Json object;
  try {
    object = Json::parse(text);
  } catch (const Json::exception& e) {
    config_fail("{}: not valid JSON: {}", where, e.what());
  }
  if (!object.is_object()) config_fail("{}: a JSON {}, not an object", where, object.type_name());
  return object;
}

ParsedConfig parse_config(const Json& object, const std::string& where) {
  std::vector<std::string> problems;
  Fields fields(object, where, problems);
  ParsedConfig parsed;
  parsed.type = fields.text("model_type");
  if (parsed.type == "gpt2") {
    parsed.model = read_gpt2(fields);
  } else if (parsed.type == "llama" || parsed.type == "mistral" || parsed.type == "qwen2" ||
             parsed.type == "qwen3" || parsed.type == "deepseek_v3" || parsed.type == "mixtral" ||
             parsed.type == "qwen3_moe") {
    parsed.model = read_llama(fields, parsed.type, parsed.unknown);
  } else {
    if (problems.empty()) {
      fields.problem(
          "model_type \"{}\" is not supported (known: gpt2, llama, mistral, qwen2, qwen3, deepseek_v3, "
          "mixtral, qwen3_moe)",
          parsed.type);
    }
    throw ConfigError(problems);
  }
  if (problems.empty()) {  // values that cannot be read would only bring consequences
    for (const std::string& problem : problems_of(parsed.model))
      problems.push_back(fmt::format("{}: {}", where, problem));
  }
  if (!problems.empty()) throw ConfigError(problems);
  parsed.model = resolved(parsed.model);
  for (const auto& [name, value] : object.items()) {
    if (!fields.used(name)) parsed.kept.push_back(name);
  }
  const std::vector<std::string> others = fields.unknown();
  parsed.unknown.insert(parsed.unknown.end(), others.begin(), others.end());
  return parsed;
}

const char* activation_name(Activation activation) {
  for (const ActivationName& entry : kActivationNames) {
    if (entry.activation == activation) return entry.name;
  }
  WEFT_CHECK(false, "activation {} has no name", ops::name_of(activation));
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "float64";
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      WEFT_CHECK(false, "weights of type {}", name_of(dtype));
  }
}

Json gpt2_json(const ModelConfig& c) {
  Json object = {
      {"architectures", {"GPT2LMHeadModel"}},
      {"n_layer", c.num_layers},
      {"n_embd", c.hidden_size},
      {"n_head", c.num_attention_heads},
      {"n_positions", c.max_position_embeddings},
      {"layer_norm_epsilon", c.norm_epsilon},
      {"activation_function", activation_name(c.activation)},
      {"attn_pdrop", c.attention_dropout},
      {"resid_pdrop", c.hidden_dropout},
      {"embd_pdrop", c.hidden_dropout},
      {"scale_attn_weights", true},
      {"scale_attn_by_inverse_layer_idx", false},
      {"add_cross_attention", false},
  };
  object["n_inner"] = c.ffn_hidden_size == 4 * c.hidden_size ? Json() : Json(c.ffn_hidden_size);
  return object;
}

std::vector<std::int64_t> dense_layers(const ModelConfig& c) {
  const std::vector<bool> experts = expert_layers(c.moe, c.num_layers);
  std::vector<std::int64_t> dense;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    if (!experts[i]) dense.push_back(static_cast<std::int64_t>(i));
  }
  return dense;
}

void write_deepseek_experts(const ModelConfig& c, Json& object) {
  object["first_k_dense_replace"] = dense_layers(c).size();
  if (c.moe.num_experts == 0) return;
  object["n_routed_experts"] = c.moe.num_experts;
  object["num_experts_per_tok"] = c.moe.topk;
  object["moe_intermediate_size"] = c.moe.ffn_hidden_size;
  object["n_shared_experts"] = c.moe.shared_expert_size / c.moe.ffn_hidden_size;
  object["n_group"] = std::max<std::int64_t>(c.moe.num_groups, 1);
  object["topk_group"] = std::max<std::int64_t>(c.moe.group_topk, 1);
  object["routed_scaling_factor"] = c.moe.scaling_factor;
  object["norm_topk_prob"] = true;
  object["scoring_func"] = "sigmoid";
  object["topk_method"] = "noaux_tc";
}

Json llama_json(const ModelConfig& c, HuggingFaceFamily family) {
  Json scaling;
  if (c.rope_scaling.kind == RopeScaling::Kind::kLinear) {
    scaling = {{"rope_type", "linear"}, {"factor", c.rope_scaling.factor}};
  } else if (c.rope_scaling.kind == RopeScaling::Kind::kLlama3) {
    scaling = {{"rope_type", "llama3"},
               {"factor", c.rope_scaling.factor},
               {"low_freq_factor", c.rope_scaling.low_freq_factor},
               {"high_freq_factor", c.rope_scaling.high_freq_factor},
               {"original_max_position_embeddings", c.rope_scaling.original_max_position_embeddings}};
  }
  if (c.rope_scaling.kind == RopeScaling::Kind::kYarn) scaling = yarn_json(c.rope_scaling);
  Json parameters = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
  parameters["rope_theta"] = c.rotary_base;
  Json object = {
      {"num_hidden_layers", c.num_layers},
      {"hidden_size", c.hidden_size},
      {"num_attention_heads", c.num_attention_heads},
      {"num_key_value_heads", c.num_query_groups},
      {"head_dim", c.kv_channels},
      {"intermediate_size", c.ffn_hidden_size},
      {"max_position_embeddings", c.max_position_embeddings},
      {"rms_norm_eps", c.norm_epsilon},
      {"hidden_act", activation_name(c.activation)},
      {"attention_dropout", c.attention_dropout},
      {"rope_parameters", parameters},
      {"rope_theta", c.rotary_base},
      {"rope_scaling", scaling},
  };
  if (family == HuggingFaceFamily::kQwen2) {
    object["architectures"] = {"Qwen2ForCausalLM"};
    object["use_sliding_window"] = false;
  } else if (family == HuggingFaceFamily::kDeepseekV3) {
    object["architectures"] = {"DeepseekV3ForCausalLM"};
    object["attention_bias"] = false;
    object["q_lora_rank"] = c.latent.q_lora_rank > 0 ? Json(c.latent.q_lora_rank) : Json();
    object["kv_lora_rank"] = c.latent.kv_lora_rank;
    object["qk_nope_head_dim"] = c.latent.qk_head_dim;
    object["qk_rope_head_dim"] = object["head_dim"] = c.latent.qk_pos_emb_head_dim;
    object["qk_head_dim"] = c.latent.query_dim();
    object["v_head_dim"] = c.latent.v_head_dim;
    object["rope_interleave"] = c.rotary_interleaved;
    write_deepseek_experts(c, object);
  } else if (family == HuggingFaceFamily::kMixtral) {
    object["architectures"] = {"MixtralForCausalLM"};
    object["sliding_window"] = c.sliding_window > 0 ? Json(c.sliding_window) : Json();
    object["intermediate_size"] = c.moe.ffn_hidden_size;
    object["num_local_experts"] = c.moe.num_experts;
    object["num_experts_per_tok"] = c.moe.topk;
  } else if (family == HuggingFaceFamily::kQwen3Moe) {
    object["architectures"] = {"Qwen3MoeForCausalLM"};
    object["use_sliding_window"] = false;
    object["sliding_window"] = nullptr;
    object["attention_bias"] = false;
    object["num_experts"] = c.moe.num_experts;
    object["num_experts_per_tok"] = c.moe.topk;
    object["moe_intermediate_size"] = c.moe.ffn_hidden_size;
    object["norm_topk_prob"] = !c.moe.pre_softmax;
    object["decoder_sparse_step"] = 1;
    object["mlp_only_layers"] = dense_layers(c);
  } else if (family == HuggingFaceFamily::kQwen3) {
    object["architectures"] = {"Qwen3ForCausalLM"};
    object["use_sliding_window"] = false;
    object["sliding_window"] = nullptr;
    object["layer_types"] =
        std::vector<std::string>(static_cast<std::size_t>(c.num_layers), "full_attention");
    object["attention_bias"] = false;
  } else if (family == HuggingFaceFamily::kMistral) {
    object["architectures"] = {"MistralForCausalLM"};
    object["sliding_window"] = c.sliding_window;
  } else {
    object["architectures"] = {"LlamaForCausalLM"};
    object["attention_bias"] = c.add_bias_linear;
    object["mlp_bias"] = c.add_bias_linear;
  }
  return object;
}

}  // namespace

ModelConfig config_from_huggingface(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const ParsedConfig parsed = parse_config(parse_object(read_file(path), path.string()), path.string());
  if (!parsed.unknown.empty()) {
    log_warn("{}: fields that are not known and not used: {}", path.string(),
             fmt::join(parsed.unknown, ", "));
  }
  return parsed.model;
}

std::string config_to_huggingface(const ModelConfig& config, DType dtype, const std::string& source) {
  const ModelConfig c = resolved(config);
  const HuggingFaceFamily family = huggingface_family(c);
  Json object = family == HuggingFaceFamily::kGpt2 ? gpt2_json(c) : llama_json(c, family);
  object["model_type"] = name_of(family);
  object["vocab_size"] = c.vocab_size;
  object["tie_word_embeddings"] = c.tied;
  object["initializer_range"] = c.init_method_std;
  object["dtype"] = object["torch_dtype"] = torch_name(dtype);
  if (!source.empty()) {
    const Json original = parse_object(source, "config.json of the source");
    for (const std::string& name : parse_config(original, "config.json of the source").kept) {
      if (!object.contains(name)) object[name] = original[name];
    }
  }
  return object.dump(2) + "\n";
}

std::vector<std::int64_t> huggingface_end_tokens(const std::filesystem::path& folder) {
  for (const char* file : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = folder / file;
    if (!std::filesystem::exists(path)) continue;
    const Json object = parse_object(read_file(path), path.string());
    const auto field = object.find("eos_token_id");
    if (field == object.end() || field->is_null()) continue;
    std::vector<std::int64_t> ids;
    for (const Json& id : field->is_array() ? *field : Json::array({*field})) {
      if (!id.is_number_integer())
        config_fail("{}: eos_token_id {} is no token id", path.string(), field->dump());
      ids.push_back(id.get<std::int64_t>());
    }
    return ids;
  }
  return {};
}

}  // namespace weft
