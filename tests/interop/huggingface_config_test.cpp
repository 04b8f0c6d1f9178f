// What config.json says is used, or refused by name and value.
#include <gtest/gtest.h>

#include <cmath>

#include "core/check.hpp"
#include "interop/huggingface.hpp"
#include "io/atomic_file.hpp"
#include "model/rotary_table.hpp"
#include "model_folder.hpp"

namespace weft {
namespace {

using test::Json;

ModelConfig config_of(const Json& object) {
  const test::TempFolder folder;
  test::save_json(folder.path() / "config.json", object);
  return config_from_huggingface(folder);
}

Json golden(const std::string& model, const char* file = "config.json") {
  return test::load_json(test::golden_model(model) / file);
}

Json with(Json object, const std::string& field, const Json& value) {
  object[field] = value;
  return object;
}

std::string refusal(const Json& object) {
  return test::problems_from([&] { config_of(object); });
}

TEST(HuggingFaceConfig, Gpt2) {
  ModelConfig c;
  c.num_layers = 3;
  c.hidden_size = 32;
  c.num_attention_heads = c.num_query_groups = 4;
  c.kv_channels = 8;
  c.ffn_hidden_size = 128;
  c.vocab_size = 101;
  c.max_position_embeddings = 64;
  c.hidden_dropout = c.attention_dropout = 0;
  EXPECT_EQ(config_of(golden("gpt2")), c);
}

TEST(HuggingFaceConfig, Llama3) {
  ModelConfig c;
  c.num_layers = 2;
  c.hidden_size = 48;
  c.num_attention_heads = 4;
  c.num_query_groups = 2;
  c.kv_channels = 16;
  c.ffn_hidden_size = 64;
  c.vocab_size = 96;
  c.max_position_embeddings = 512;
  c.position_embedding = PositionEmbedding::kRope;
  c.rope_scaling = {RopeScaling::Kind::kLlama3, 8, 1, 4, 64};
  c.normalization = Normalization::kRmsNorm;
  c.activation = ops::Activation::kSilu;
  c.gated = true;
  c.add_bias_linear = false;
  c.hidden_dropout = c.attention_dropout = 0;
  EXPECT_EQ(config_of(golden("llama3_rope_tied")), c);
}

TEST(HuggingFaceConfig, BothSpellingsSayTheSame) {
  for (const char* model : {"gpt2", "llama", "llama3_rope_tied", "mistral_sliding", "qwen3"}) {
    EXPECT_EQ(config_of(golden(model)), config_of(golden(model, "config.legacy.json"))) << model;
  }
  // The spelling of scaling before rope_type.
  Json old = golden("llama", "config.legacy.json");
  old["rope_scaling"] = {{"type", "linear"}, {"factor", 8.0}};
  Json now = golden("llama");
  now["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 10000.0}};
  EXPECT_EQ(config_of(old), config_of(now));
  EXPECT_EQ(config_of(now).rope_scaling, (RopeScaling{RopeScaling::Kind::kLinear, 8}));
}

TEST(HuggingFaceConfig, FieldsAreUsed) {
  const Json llama = golden("llama", "config.legacy.json");
  EXPECT_EQ(config_of(with(llama, "rope_theta", 500000)).rotary_base, 500000);
  EXPECT_EQ(config_of(with(llama, "rms_norm_eps", 1e-6)).norm_epsilon, 1e-6);
  EXPECT_EQ(config_of(with(llama, "tie_word_embeddings", true)).tied, true);
  EXPECT_EQ(config_of(with(llama, "hidden_act", "gelu")).activation, ops::Activation::kGeluErf);
  EXPECT_EQ(config_of(with(llama, "head_dim", 32)).kv_channels, 32);
  EXPECT_EQ(config_of(with(llama, "head_dim", nullptr)).kv_channels, 8);
  EXPECT_EQ(config_of(with(with(llama, "attention_bias", true), "mlp_bias", true)).add_bias_linear, true);
  Json scaled = llama;
  scaled["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 32.0},
                            {"low_freq_factor", 1.5},
                            {"high_freq_factor", 4.5},
                            {"original_max_position_embeddings", 16}};
  EXPECT_EQ(config_of(scaled).rope_scaling, (RopeScaling{RopeScaling::Kind::kLlama3, 32, 1.5, 4.5, 16}));

  const Json gpt2 = golden("gpt2");
  EXPECT_EQ(config_of(gpt2).activation, ops::Activation::kGeluTanh);
  EXPECT_EQ(config_of(with(gpt2, "activation_function", "gelu")).activation, ops::Activation::kGeluErf);
  EXPECT_EQ(config_of(with(gpt2, "activation_function", "relu")).activation, ops::Activation::kRelu);
  EXPECT_EQ(config_of(with(gpt2, "n_inner", 40)).ffn_hidden_size, 40);
  EXPECT_EQ(config_of(with(gpt2, "layer_norm_epsilon", 1e-6)).norm_epsilon, 1e-6);
  EXPECT_FALSE(config_of(with(gpt2, "tie_word_embeddings", false)).tied);
}

TEST(HuggingFaceConfig, DefaultsOfTheFamilies) {
  Json llama = golden("llama");
  for (const char* name : {"rms_norm_eps", "rope_parameters", "tie_word_embeddings", "num_key_value_heads"}) {
    llama.erase(name);
  }
  const ModelConfig c = config_of(llama);
  EXPECT_EQ(c.norm_epsilon, 1e-6);
  EXPECT_EQ(c.rotary_base, 10000);
  EXPECT_FALSE(c.tied);
  EXPECT_EQ(c.num_query_groups, 6);
  Json gpt2 = golden("gpt2");
  gpt2.erase("tie_word_embeddings");
  EXPECT_TRUE(config_of(gpt2).tied);
}

TEST(HuggingFaceConfig, WhatCannotBeSaidIsRefusedByNameAndValue) {
  const Json llama = golden("llama"), legacy = golden("llama", "config.legacy.json"), gpt2 = golden("gpt2");
  const Json dynamic = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  struct Case {
    Json config;
    std::vector<std::string> named;
  };
  const Case cases[] = {
      {with(legacy, "rope_scaling", dynamic), {"rope_scaling", "dynamic"}},
      {with(llama, "rope_parameters", dynamic), {"rope_parameters", "dynamic"}},
      {with(llama, "attention_bias", true), {"attention_bias true"}},
      {with(llama, "mlp_bias", true), {"mlp_bias true"}},
      {with(llama, "sliding_window", 4), {"sliding_window 4"}},
      {with(llama, "partial_rotary_factor", 0.5), {"partial_rotary_factor 0.5"}},
      {with(llama, "hidden_act", "mish"), {"hidden_act", "mish"}},
      {with(llama, "quantization_config", {{"bits", 4}}), {"quantization_config"}},
      {with(llama, "rope_theta", 5e5), {"rope_theta 500000", "10000", "contradict"}},
      {with(llama, "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}),
       {"rope_scaling", "contradict"}},
      {with(legacy, "rope_scaling", {{"rope_type", "llama3"}, {"factor", 2.0}}),
       {"low_freq_factor is missing"}},
      {with(llama, "hidden_size", "48"), {"hidden_size", "\"48\"", "integer"}},
      {with(llama, "hidden_size", 1.5), {"hidden_size", "1.5", "integer"}},
      {with(llama, "num_hidden_layers", -1), {"--num-layers -1"}},
      {with(llama, "num_key_value_heads", 4), {"--num-query-groups 4"}},
      {with(llama, "model_type", "mamba"), {"model_type", "mamba"}},
      {with(gpt2, "scale_attn_by_inverse_layer_idx", true), {"scale_attn_by_inverse_layer_idx true"}},
      {with(gpt2, "scale_attn_weights", false), {"scale_attn_weights false"}},
      {with(gpt2, "add_cross_attention", true), {"add_cross_attention true"}},
      {with(gpt2, "activation_function", "tanh"), {"activation_function", "tanh"}},
      {with(gpt2, "embd_pdrop", 0.25), {"embd_pdrop 0.25", "resid_pdrop 0"}},
      {with(gpt2, "n_embd", 30), {"--hidden-size 30", "--num-attention-heads 4"}},
  };
  for (const Case& c : cases) {
    const std::string text = refusal(c.config);
    for (const std::string& name : c.named)
      EXPECT_NE(text.find(name), std::string::npos) << name << " in:\n" << text;
  }
}

TEST(HuggingFaceConfig, AllFaultsAreListedAtOnce) {
  Json object = golden("llama");
  object["sliding_window"] = 4;
  object["hidden_act"] = "mish";
  object.erase("vocab_size");
  const std::string text = refusal(object);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
}

TEST(HuggingFaceConfig, DamagedOrAbsent) {
  const test::TempFolder folder;
  EXPECT_NE(test::problems_from([&] { config_from_huggingface(folder); }).find("config.json"),
            std::string::npos);
  write_file(folder.path() / "config.json", "{\"model_type\": ");
  EXPECT_NE(test::problems_from([&] { config_from_huggingface(folder); }).find("JSON"), std::string::npos);
  write_file(folder.path() / "config.json", "[]");
  EXPECT_NE(test::problems_from([&] { config_from_huggingface(folder); }).find("object"), std::string::npos);
}

TEST(HuggingFaceConfig, UnknownFieldsAreOneWarning) {
  Json object = golden("llama");
  EXPECT_TRUE(test::warnings_from([&] { config_of(object); }).empty());
  object["frobnication"] = 3;
  object["rope_parameters"]["wobble"] = 1;
  const std::vector<std::string> lines = test::warnings_from([&] { config_of(object); });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("frobnication"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("rope_parameters.wobble"), std::string::npos) << lines[0];
}

TEST(HuggingFaceConfig, WrittenBackWithTheSameFields) {
  for (const char* model : {"gpt2", "llama", "llama3_rope_tied", "mistral_sliding", "qwen3"}) {
    for (const char* file : {"config.json", "config.legacy.json"}) {
      Json original = golden(model, file);
      if (original["model_type"] == "llama") {
        original["rms_norm_eps"] = 1e-6;
        original["initializer_range"] = 0.01;
      }
      original["bos_token_id"] = 77;
      original["frobnication"] = 3;
      const ModelConfig config = config_of(original);
      const Json written = Json::parse(config_to_huggingface(config, DType::kF32, original.dump()));
      for (const auto& [name, value] : original.items())
        EXPECT_EQ(written[name], value) << model << " " << name;
      EXPECT_EQ(config_of(written), config);
      EXPECT_EQ(written["dtype"], "float32");
      EXPECT_EQ(written["torch_dtype"], "float32");
    }
  }
  // Both spellings of the rotary fields.
  ModelConfig c = config_of(golden("llama"));
  c.rotary_base = 500000;
  c.rope_scaling = {RopeScaling::Kind::kLinear, 8};
  const Json written = Json::parse(config_to_huggingface(c, DType::kBF16));
  EXPECT_EQ(written["rope_theta"], 500000);
  EXPECT_EQ(written["rope_parameters"]["rope_theta"], 500000);
  EXPECT_EQ(written["rope_parameters"]["factor"], 8);
  EXPECT_EQ(written["rope_scaling"]["factor"], 8);
  EXPECT_EQ(written["dtype"], "bfloat16");
  EXPECT_EQ(config_of(written), c);
}

TEST(HuggingFaceConfig, NewValuesReplaceThoseOfTheSource) {
  const Json original = golden("llama3_rope_tied", "config.legacy.json");
  ModelConfig c = config_of(original);
  c.rope_scaling = {};
  c.vocab_size = 97;
  EXPECT_EQ(config_of(Json::parse(config_to_huggingface(c, DType::kF32, original.dump()))), c);
}

TEST(HuggingFaceConfig, ModelsOfNoFamilyNameTheirOptions) {
  ModelConfig c = config_of(golden("llama"));
  c.normalization = Normalization::kLayerNorm;
  c.rotary_interleaved = true;
  c.rotary_percent = 0.5;
  const std::string text = test::problems_from([&] { config_to_huggingface(c, DType::kF32); });
  for (const char* name : {"--normalization", "--rotary-interleaved", "--rotary-percent 0.5"}) {
    EXPECT_NE(text.find(name), std::string::npos) << text;
  }
  EXPECT_EQ(huggingface_obstacles(c).size(), 3u);
  c = config_of(golden("gpt2"));
  EXPECT_TRUE(huggingface_obstacles(c).empty());
  c.num_query_groups = 2;
  c.gated = true;
  EXPECT_EQ(huggingface_obstacles(c).size(), 2u);
}

TEST(HuggingFaceConfig, LlamaWithOtherSwitches) {
  Json qwen = golden("llama");
  qwen["model_type"] = "qwen2";
  qwen["use_sliding_window"] = false;
  qwen["sliding_window"] = 4096;
  for (const char* name : {"attention_bias", "mlp_bias"}) qwen.erase(name);
  const ModelConfig c = config_of(qwen);
  EXPECT_TRUE(c.add_qkv_bias);
  EXPECT_FALSE(c.add_bias_linear);
  EXPECT_EQ(config_of(Json::parse(config_to_huggingface(c, DType::kF32))), c);
  EXPECT_NE(refusal(with(qwen, "use_sliding_window", true)).find("sliding_window 4096"), std::string::npos);

  Json mistral = golden("llama");
  mistral["model_type"] = "mistral";
  EXPECT_EQ(config_of(mistral).sliding_window, 4096);  // Mistral's default
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(config_of(mistral), config_of(golden("llama")));
  mistral["sliding_window"] = 7;
  const ModelConfig windowed = config_of(mistral);
  EXPECT_EQ(windowed.sliding_window, 7);
  const Json written = Json::parse(config_to_huggingface(windowed, DType::kF32));
  EXPECT_EQ(written["model_type"], "mistral");
  EXPECT_EQ(config_of(written), windowed);
  ModelConfig biased = windowed;
  biased.add_bias_linear = true;
  EXPECT_NE(
      test::problems_from([&] { config_to_huggingface(biased, DType::kF32); }).find("--sliding-window 7"),
      std::string::npos);
}

TEST(HuggingFaceConfig, Qwen3) {
  const ModelConfig c = config_of(golden("qwen3"));
  EXPECT_TRUE(c.qk_layernorm);
  EXPECT_FALSE(c.add_bias_linear || c.add_qkv_bias);
  Json bare = golden("qwen3");
  bare.erase("head_dim");
  EXPECT_EQ(config_of(bare).kv_channels, 128);  // the family's default
  EXPECT_NE(refusal(with(golden("qwen3"), "attention_bias", true)).find("attention_bias true"),
            std::string::npos);
  for (bool ModelConfig::*bias : {&ModelConfig::add_qkv_bias, &ModelConfig::add_bias_linear}) {
    ModelConfig biased = c;
    biased.*bias = true;
    EXPECT_EQ(huggingface_obstacles(biased).size(), 1u);
  }
  ModelConfig learned = config_of(golden("gpt2"));
  learned.qk_layernorm = true;
  EXPECT_EQ(huggingface_obstacles(learned).size(), 1u);
}

TEST(HuggingFaceConfig, LatentAttention) {
  const Json dense = with(golden("deepseek_v3"), "first_k_dense_replace", 3);
  const ModelConfig c = config_of(dense);
  EXPECT_EQ(c.latent, (LatentConfig{true, 24, 16, 16, 8, 16}));
  EXPECT_EQ(c.kv_channels, 24);
  EXPECT_TRUE(c.rotary_interleaved);
  EXPECT_EQ(config_of(Json::parse(config_to_huggingface(c, DType::kF32))), c);
  EXPECT_EQ(config_of(with(dense, "q_lora_rank", nullptr)).latent.q_lora_rank, 0);
  EXPECT_FALSE(config_of(with(dense, "rope_interleave", false)).rotary_interleaved);
  Json bare = dense;
  for (const char* name :
       {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    bare.erase(name);
  }
  EXPECT_EQ(config_of(bare).latent, (LatentConfig{true, 1536, 512, 128, 64, 128}));
  EXPECT_NE(refusal(with(dense, "attention_bias", true)).find("attention_bias true"), std::string::npos);
  const Json yarn = with(golden("deepseek_v3_yarn_noqlora"), "first_k_dense_replace", 2);
  EXPECT_EQ(config_of(yarn).rope_scaling.mscale_all_dim, 0.8);
  EXPECT_EQ(config_of(Json::parse(config_to_huggingface(config_of(yarn), DType::kF32))), config_of(yarn));
  ModelConfig windowed = c;
  windowed.sliding_window = 4;
  EXPECT_EQ(huggingface_obstacles(windowed).size(), 1u);
}

// transformers' rules: mscale counts only with mscale_all_dim, attention_factor before both.
TEST(HuggingFaceConfig, Yarn) {
  struct Case {
    Json added;
    double magnitude, all_dim;
  };
  const double plain = 0.1 * std::log(4.0) + 1;
  const Case cases[] = {
      {Json::object(), plain, 0},
      {{{"mscale", 0.7}}, plain, 0},
      {{{"mscale_all_dim", 0.8}}, plain, 0.8},
      {{{"mscale", 1.0}, {"mscale_all_dim", 0.8}}, 1.0249579607969668, 0.8},
      {{{"mscale", 0.707}, {"mscale_all_dim", 0.707}, {"truncate", false}}, 1, 0.707},
      {{{"attention_factor", 1.5}, {"mscale", 1.0}, {"mscale_all_dim", 0.8}}, 1.5, 0.8},
  };
  for (const Case& c : cases) {
    Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 16.0}};
    yarn.update(c.added);
    const ModelConfig config = config_of(with(golden("llama", "config.legacy.json"), "rope_scaling", yarn));
    EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kYarn);
    EXPECT_EQ(config.rope_scaling.beta_fast, 16);
    EXPECT_EQ(config.rope_scaling.beta_slow, 1);
    EXPECT_EQ(config.rope_scaling.original_max_position_embeddings, config.max_position_embeddings);
    EXPECT_EQ(config.rope_scaling.truncate, !c.added.contains("truncate"));
    EXPECT_NEAR(rotary_magnitude(config.rope_scaling), c.magnitude, 1e-12) << c.added;
    EXPECT_EQ(config.rope_scaling.mscale_all_dim, c.all_dim);
    const Json written = Json::parse(config_to_huggingface(config, DType::kF32));
    EXPECT_EQ(config_of(written), config) << written["rope_scaling"];
    EXPECT_EQ(written["rope_parameters"]["rope_type"], "yarn");
  }
  ModelConfig c = config_of(golden("llama"));
  c.rope_scaling = {.kind = RopeScaling::Kind::kYarn, .factor = 4, .mscale = 0.5};
  const Json written = Json::parse(config_to_huggingface(c, DType::kF32));
  EXPECT_NEAR(rotary_magnitude(config_of(written).rope_scaling), rotary_magnitude(c.rope_scaling), 1e-12);
}

TEST(HuggingFaceConfig, EndTokens) {
  EXPECT_EQ(huggingface_end_tokens(test::golden_model("gpt2")), std::vector<std::int64_t>{2});
  const test::TempFolder folder;
  EXPECT_TRUE(huggingface_end_tokens(folder).empty());
  test::save_json(folder.path() / "config.json", {{"eos_token_id", {5, 6}}});
  EXPECT_EQ(huggingface_end_tokens(folder), (std::vector<std::int64_t>{5, 6}));
}

}  // namespace
}  // namespace weft
