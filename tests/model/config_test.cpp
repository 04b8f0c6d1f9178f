#include "model/config.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/check.hpp"

namespace weft {
namespace {

ModelConfig small() {
  ModelConfig c;
  c.num_layers = 4;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.ffn_hidden_size = 64;
  c.vocab_size = 97;
  c.max_position_embeddings = 16;
  return c;
}

ModelConfig llama_like() {
  ModelConfig c = small();
  c.num_query_groups = 2;
  c.position_embedding = PositionEmbedding::kRope;
  c.rope_scaling = {RopeScaling::Kind::kLlama3, 32, 1.5, 4.5, 64};
  c.rotary_base = 500000;
  c.normalization = Normalization::kRmsNorm;
  c.norm_epsilon = 1e-6;
  c.activation = ops::Activation::kSilu;
  c.gated = true;
  c.add_bias_linear = false;
  c.tied = false;
  c.hidden_dropout = 0;
  return c;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(ModelConfig, DefaultsAreFilledIn) {
  ModelConfig c = small();
  c.ffn_hidden_size = 0;
  EXPECT_EQ(resolved(c).ffn_hidden_size, 128);
  EXPECT_EQ(resolved(c).kv_channels, 8);
  EXPECT_EQ(resolved(c).num_query_groups, 4);
  EXPECT_EQ(resolved(resolved(c)), resolved(c));
  c.gated = true;
  c.hidden_size = 4096;
  EXPECT_EQ(resolved(c).ffn_hidden_size, 10880);  // int(4 · 4096 · 2/3 / 64) · 64
  c.hidden_size = 8;
  EXPECT_EQ(resolved(c).ffn_hidden_size, 64);
}

TEST(ModelConfig, FineOnesHaveNoProblems) {
  EXPECT_EQ(joined(problems_of(small())), "");
  EXPECT_EQ(joined(problems_of(llama_like())), "");
  ModelConfig c = small();
  c.hidden_size = 30;
  c.kv_channels = 8;  // a head size of its own needs no divisibility
  EXPECT_EQ(joined(problems_of(c)), "");
}

TEST(ModelConfig, ProblemsNameOptionsNumbersAndFix) {
  ModelConfig c = small();
  c.hidden_size = 30;
  c.num_query_groups = 3;
  const std::string text = joined(problems_of(c));
  EXPECT_NE(text.find("--hidden-size 30"), std::string::npos) << text;
  EXPECT_NE(text.find("--num-attention-heads 4"), std::string::npos) << text;
  EXPECT_NE(text.find("--hidden-size 28 or 32"), std::string::npos) << text;
  EXPECT_NE(text.find("--num-query-groups 3"), std::string::npos) << text;
  EXPECT_NE(text.find("1, 2, 4"), std::string::npos) << text;
}

TEST(ModelConfig, AllProblemsAreListed) {
  ModelConfig c = small();
  c.num_layers = -1;
  c.vocab_size = 0;
  c.hidden_dropout = 1;
  c.norm_epsilon = 0;
  c.max_position_embeddings = std::int64_t{1} << 40;
  const std::vector<std::string> problems = problems_of(c);
  EXPECT_EQ(problems.size(), 5u) << joined(problems);
}

TEST(ModelConfig, ImpossibleRotaryAndMagnitude) {
  ModelConfig c = llama_like();
  c.kv_channels = 7;
  EXPECT_EQ(problems_of(c).size(), 1u);
  c = llama_like();
  c.rotary_percent = 0;
  EXPECT_EQ(problems_of(c).size(), 1u);
  c = llama_like();
  c.rope_scaling.low_freq_factor = 5;
  EXPECT_EQ(problems_of(c).size(), 1u);
  c.rope_scaling = {.kind = RopeScaling::Kind::kYarn};
  EXPECT_EQ(joined(problems_of(c)), "");
  c.rope_scaling.beta_slow = 32;
  c.rope_scaling.mscale = -1;
  c.rope_scaling.original_max_position_embeddings = 0;
  EXPECT_EQ(problems_of(c).size(), 3u);
  c = small();
  c.hidden_size = c.ffn_hidden_size = c.vocab_size = (std::int64_t{1} << 31) - 4;
  EXPECT_EQ(problems_of(c).size(), 1u);
  EXPECT_EQ(problems_of(ModelConfig{}).size(), 5u);
}

ModelConfig latent_like() {
  ModelConfig c = llama_like();
  c.num_query_groups = 0;
  c.latent = {.enabled = true,
              .q_lora_rank = 24,
              .kv_lora_rank = 16,
              .qk_head_dim = 8,
              .qk_pos_emb_head_dim = 4,
              .v_head_dim = 10};
  return c;
}

TEST(ModelConfig, LatentAttention) {
  ModelConfig c = latent_like();
  EXPECT_EQ(joined(problems_of(c)), "");
  EXPECT_EQ(joined(problems_of(resolved(c))), "");
  EXPECT_EQ(resolved(c).kv_channels, 12);  // of core attention
  EXPECT_EQ(resolved(c).num_query_groups, 4);
  EXPECT_EQ(resolved(resolved(c)), resolved(c));
  c.latent.v_head_dim = 14;
  EXPECT_EQ(resolved(c).kv_channels, 14);
  c.num_query_groups = 2;
  c.kv_channels = 9;
  c.add_qkv_bias = true;
  c.latent.qk_pos_emb_head_dim = 3;
  c.position_embedding = PositionEmbedding::kNone;
  const std::string text = joined(problems_of(c));
  for (const char* name : {"--num-query-groups 2", "--kv-channels 9", "--add-qkv-bias",
                           "--qk-pos-emb-head-dim 3", "--position-embedding-type rope"}) {
    EXPECT_NE(text.find(name), std::string::npos) << name << " in:\n" << text;
  }
  c = latent_like();
  c.hidden_size = 30;  // 4 heads need not divide it
  EXPECT_EQ(joined(problems_of(c)), "");
  c.latent.kv_lora_rank = 0;
  c.latent.q_lora_rank = -1;
  EXPECT_EQ(problems_of(c).size(), 2u);
  c.latent.kv_lora_rank = c.latent.q_lora_rank = c.latent.v_head_dim = (std::int64_t{1} << 31) - 1;
  EXPECT_EQ(problems_of(c).size(), 1u);
}

// The attention of DeepSeek-V3 has 187 107 328 parameters a layer: queries 7168·1536 + 1536·128·192, latent
// 7168·576
// + 512·128·256, output 128·128·7168, and norms of 1536 and 512.
TEST(ModelConfig, CountsOfLatentAttention) {
  ModelConfig c = llama_like();
  c.num_layers = 1;
  c.hidden_size = 7168;
  c.num_attention_heads = 128;
  c.num_query_groups = 0;
  c.ffn_hidden_size = 18432;
  c.vocab_size = 129280;
  c.latent = {.enabled = true, .q_lora_rank = 1536, .kv_lora_rank = 512};
  const std::int64_t matrices =
      7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168;
  EXPECT_EQ(matrices + 2048, 187107328);
  EXPECT_EQ(parameter_count(c), matrices + 2048 + 3 * 7168 * 18432 + 3 * 7168 + 2 * 129280 * 7168);
  EXPECT_EQ(flops_per_token(c, 1000),
            6.0 * (matrices + 3 * 7168 * 18432 + 129280 * 7168) + 6.0 * 128 * (192 + 128) * 1000);
  c.latent.q_lora_rank = 0;
  EXPECT_EQ(parameter_count(c), matrices - 7168 * 1536 - 1536 * 128 * 192 + 7168 * 128 * 192 + 512 +
                                    3 * 7168 * 18432 + 3 * 7168 + 2 * 129280 * 7168);
}

// Mixtral 8x7B: 46.7 B parameters, 12.9 B of them used by a token.
TEST(ModelConfig, ParametersAndFlopsOfExperts) {
  ModelConfig c = llama_like();
  c.num_layers = 32;
  c.hidden_size = 4096;
  c.num_attention_heads = 32;
  c.num_query_groups = 8;
  c.kv_channels = 0;
  c.ffn_hidden_size = 14336;
  c.vocab_size = 32000;
  c.tied = false;
  c.moe.num_experts = 8;
  c.moe.topk = 2;
  EXPECT_EQ(parameter_count(c), 46702792704);
  const double attention = 4096.0 * (32 + 16) * 128 + 4096.0 * 4096;
  EXPECT_EQ(flops_per_token(c, 1),
            6 * (32 * (attention + 2 * 3 * 4096.0 * 14336 + 8 * 4096) + 32000 * 4096.0) + 12 * 32 * 4096.0);
}

TEST(MoeConfig, LayersWithExperts) {
  MoeConfig c;
  c.num_experts = 4;
  const auto layers = [&](const std::string& text, std::int64_t count) {
    c.layer_freq = text;
    return expert_layers(c, count);
  };
  using List = std::vector<bool>;
  EXPECT_EQ(layers("1", 3), (List{true, true, true}));
  EXPECT_EQ(layers("2", 5), (List{true, false, true, false, true}));
  EXPECT_EQ(layers("[0]*1+[1]*3", 4), (List{false, true, true, true}));
  EXPECT_EQ(layers("([0]+[1]*2)*2", 6), (List{false, true, true, false, true, true}));
  EXPECT_EQ(layers("[0, 1,0]", 3), (List{false, true, false}));
  for (const char* wrong :
       {"0", "-1", "[2]*3", "[0]*1+[1]*3", "[1", "1.5", "[]", "", "[1]*99999999999", "((((((((((((([1]*3"}) {
    EXPECT_THROW(layers(wrong, 3), ConfigError) << wrong;
  }
  for (const List& list : {List{true, true}, List{false, true, true}, List{true, false, true}}) {
    EXPECT_EQ(layers(layer_freq_of(list), static_cast<std::int64_t>(list.size())), list);
  }
}

TEST(MoeConfig, ProblemsNameOptionsAndNumbers) {
  const auto first = [](const auto& change) {
    MoeConfig c;
    c.num_experts = 8;
    change(c);
    const std::vector<std::string> problems = problems_of(c, 4);
    return problems.empty() ? std::string() : problems.front();
  };
  EXPECT_EQ(first([](MoeConfig&) {}), "");
  EXPECT_NE(first([](MoeConfig& c) { c.num_experts = 0, c.aux_loss_coeff = 0.1; }).find("--num-experts is 0"),
            std::string::npos);
  EXPECT_EQ(first([](MoeConfig& c) { c.topk = 9; }), "--moe-router-topk 9 must be from 1 to --num-experts 8");
  EXPECT_NE(first([](MoeConfig& c) {
              c.num_groups = 3;
              c.group_topk = 1;
            }).find("--moe-router-num-groups 3"),
            std::string::npos);
  EXPECT_NE(first([](MoeConfig& c) { c.group_topk = 1; }).find("give both"), std::string::npos);
  EXPECT_NE(first([](MoeConfig& c) { c.expert_bias = true; }).find("sigmoid"), std::string::npos);
  EXPECT_NE(first([](MoeConfig& c) { c.pad_to_capacity = true; }).find("--moe-expert-capacity-factor"),
            std::string::npos);
  EXPECT_NE(first([](MoeConfig& c) { c.layer_freq = "[0]*4"; }).find("no layer has experts"),
            std::string::npos);
}

TEST(ModelConfig, JsonRoundTrip) {
  ModelConfig c = llama_like();
  c.norm_epsilon = 0.1 + 0.2;  // no short decimal
  EXPECT_EQ(model_config_from_json(to_json(c)), c);
  EXPECT_EQ(model_config_from_json(to_json(small())), small());
  EXPECT_EQ(model_config_from_json(to_json(latent_like())), latent_like());
  for (const ops::ActivationName& row : ops::kActivations) {
    c.activation = row.value;
    EXPECT_EQ(model_config_from_json(to_json(c)), c);
  }
}

// Converts to a field of any type: how many a struct takes is how many it has.
struct AnyField {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): never called
};
template <class Struct, class... Fields>
constexpr std::size_t fields_of() {
  if constexpr (requires { Struct{Fields{}..., AnyField{}}; }) {
    return fields_of<Struct, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}

// A field that is not in the list would be its default again in a checkpoint that is loaded.
TEST(ModelConfig, JsonHoldsEveryField) {
  const nlohmann::json object = nlohmann::json::parse(to_json(ModelConfig{}));
  // rope_scaling, latent and moe are written field by field
  const std::size_t own = fields_of<ModelConfig>() - 3;
  EXPECT_EQ(object.size(),
            own + fields_of<RopeScaling>() + fields_of<LatentConfig>() + fields_of<MoeConfig>());
}

TEST(ModelConfig, JsonFaultsAreNamed) {
  try {
    model_config_from_json(
        R"({"num_layers": 2.5, "hidden_sise": 4, "gated": 1, "normalization": "BatchNorm"})");
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.problems.size(), 4u) << joined(e.problems);
    EXPECT_NE(joined(e.problems).find("hidden_sise"), std::string::npos);
    EXPECT_NE(joined(e.problems).find("2.5"), std::string::npos);
  }
  EXPECT_THROW(model_config_from_json("{"), ConfigError);
  EXPECT_THROW(model_config_from_json("[1]"), ConfigError);
  EXPECT_THROW(model_config_from_json(R"({"num_layers": 18446744073709551615})"), ConfigError);
}

TEST(ModelConfig, ParameterCountByHand) {
  // embedding 97·32 + positions 16·32; a layer: 4 norm vectors, qkv 3·(32·32 + 32), proj 32·32 + 32, fc1
  // 64·32 + 64, fc2 32·64 + 32; final norm 2·32; tied.
  const std::int64_t layer = 4 * 32 + 4 * (32 * 32 + 32) + (64 * 32 + 64) + (32 * 64 + 32);
  EXPECT_EQ(parameter_count(small()), 97 * 32 + 16 * 32 + 4 * layer + 64);
  ModelConfig c = small();
  c.tied = false;
  EXPECT_EQ(parameter_count(c) - parameter_count(small()), 97 * 32);

  // GPT-2's published size.
  ModelConfig gpt2;
  gpt2.num_layers = 12;
  gpt2.hidden_size = 768;
  gpt2.num_attention_heads = 12;
  gpt2.vocab_size = 50257;
  gpt2.max_position_embeddings = 1024;
  EXPECT_EQ(parameter_count(gpt2), 124439808);

  // Llama 3 8B's published size.
  ModelConfig llama = llama_like();
  llama.num_layers = 32;
  llama.hidden_size = 4096;
  llama.num_attention_heads = 32;
  llama.num_query_groups = 8;
  llama.ffn_hidden_size = 14336;
  llama.vocab_size = 128256;
  EXPECT_EQ(parameter_count(llama), 8030261248);
  llama.add_qkv_bias = true;
  EXPECT_EQ(parameter_count(llama), 8030261248 + 32 * (4096 + 2 * 1024));

  // Qwen3 8B's published size, norms of queries and keys among them.
  ModelConfig qwen = llama_like();
  qwen.num_layers = 36;
  qwen.hidden_size = 4096;
  qwen.num_attention_heads = 32;
  qwen.num_query_groups = 8;
  qwen.kv_channels = 128;
  qwen.ffn_hidden_size = 12288;
  qwen.vocab_size = 151936;
  qwen.qk_layernorm = true;
  EXPECT_EQ(parameter_count(qwen), 8190735360);
}

TEST(ModelConfig, FlopsPerToken) {
  const double layer = 4 * 32 * 32 + 2 * 32 * 64;
  EXPECT_EQ(flops_per_token(small(), 16), 6 * (4 * layer + 97 * 32) + 12.0 * 4 * 32 * 16);
  ModelConfig c = small();
  c.tied = false;  // the output layer is the one that multiplies
  EXPECT_EQ(flops_per_token(c, 16), flops_per_token(small(), 16));
}

}  // namespace
}  // namespace weft
