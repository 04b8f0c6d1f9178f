// Megatron's state_dict: names, query groups in linear_qkv, gate and up in linear_fc1.
#include "interop/megatron.hpp"

#include <gtest/gtest.h>

#include "model_folder.hpp"

namespace weft {
namespace {

using test::Stored;
using test::Tensors;

ModelConfig learned_positions() {
  ModelConfig c;
  c.num_layers = 2;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.vocab_size = 96;
  c.max_position_embeddings = 64;
  return c;
}

ModelConfig rope_swiglu_gqa() {
  ModelConfig c;
  c.num_layers = 2;
  c.hidden_size = 48;
  c.num_attention_heads = 6;
  c.num_query_groups = 2;
  c.ffn_hidden_size = 80;
  c.vocab_size = 96;
  c.position_embedding = PositionEmbedding::kRope;
  c.normalization = Normalization::kRmsNorm;
  c.norm_epsilon = 1e-6;
  c.activation = ops::Activation::kSilu;
  c.gated = true;
  c.add_bias_linear = false;
  c.tied = false;
  return c;
}

Tensors canonical_of(const TensorMap& map, const Tensors& file) {
  Tensors canonical;
  for (const CanonicalTensor& tensor : map.canonical()) {
    Stored stored(DType::kF32, tensor.shape);
    map.read(file.at(map.holder_of(tensor.name).name).tensor(), tensor.name, {}, stored.tensor());
    canonical.emplace(tensor.name, std::move(stored));
  }
  return canonical;
}

TEST(MegatronMap, ThereAndBackIsBitEqual) {
  const std::pair<const char*, ModelConfig> models[] = {{"gpt_learned_pos", learned_positions()},
                                                        {"gpt_rope_swiglu_gqa", rope_swiglu_gqa()}};
  for (const auto& [name, config] : models) {
    const TensorMap map = megatron_map(config);
    const Tensors file = test::load_tensors(test::golden_megatron(name) / "state_dict.safetensors");
    ASSERT_EQ(map.foreign().size(), file.size());
    for (const ForeignTensor& tensor : map.foreign()) {
      ASSERT_TRUE(file.contains(tensor.name)) << tensor.name;
      EXPECT_EQ(file.at(tensor.name).shape, tensor.shape) << tensor.name;
    }
    const Tensors canonical = canonical_of(map, file);
    Tensors back;
    assemble(
        map, {}, [&](const std::string& tensor) { return canonical.at(tensor).tensor(); },
        [&](const ForeignTensor& foreign, const Tensor& tensor) {
          back.emplace(foreign.name, Stored(tensor));
        });
    EXPECT_EQ(back, file) << name;
  }
}

TEST(MegatronMap, QueryGroupsAndGate) {
  const Tensors file =
      test::load_tensors(test::golden_megatron("gpt_rope_swiglu_gqa") / "state_dict.safetensors");
  const Tensors canonical = canonical_of(megatron_map(rope_swiglu_gqa()), file);
  const std::string layer = "decoder.layers.1.";
  const auto row = [](const Stored& stored, int index) {
    const Tensor tensor = stored.tensor().slice(index, 1);
    return std::vector<float>(tensor.data<float>(), tensor.data<float>() + tensor.elems());
  };
  const int head = 8, per_group = 3;
  const Stored& qkv = file.at(layer + "self_attention.linear_qkv.weight");
  for (int group = 0; group < 2; ++group) {
    const int base = group * (per_group + 2) * head;
    for (int i = 0; i < per_group * head; ++i) {
      EXPECT_EQ(row(canonical.at(layer + "self_attention.linear_q.weight"), group * per_group * head + i),
                row(qkv, base + i));
    }
    for (int i = 0; i < head; ++i) {
      EXPECT_EQ(row(canonical.at(layer + "self_attention.linear_k.weight"), group * head + i),
                row(qkv, base + per_group * head + i));
      EXPECT_EQ(row(canonical.at(layer + "self_attention.linear_v.weight"), group * head + i),
                row(qkv, base + (per_group + 1) * head + i));
    }
  }
  const Stored& fc1 = file.at(layer + "mlp.linear_fc1.weight");
  EXPECT_EQ(row(canonical.at(layer + "mlp.linear_gate.weight"), 79), row(fc1, 79));
  EXPECT_EQ(row(canonical.at(layer + "mlp.linear_up.weight"), 0), row(fc1, 80));
}

TEST(MegatronMap, SlicesOfGroupsAreSlicesOfTheWhole) {
  const TensorMap map = megatron_map(rope_swiglu_gqa());
  const Tensors file =
      test::load_tensors(test::golden_megatron("gpt_rope_swiglu_gqa") / "state_dict.safetensors");
  const Tensors canonical = canonical_of(map, file);
  const std::string name = "decoder.layers.0.self_attention.linear_q.weight";
  for (const std::int64_t begin : {0, 5, 23, 24, 40}) {
    const std::int64_t count = std::min<std::int64_t>(20, 48 - begin);
    const Stored slice(DType::kF32, {count, 48});
    map.read(file.at(map.holder_of(name).name).tensor(), name, {0, begin, count}, slice.tensor());
    EXPECT_EQ(slice, Stored(canonical.at(name).tensor().slice(begin, count))) << begin;
  }
}

TEST(CanonicalTensors, CountAsTheConfigurationSays) {
  ModelConfig qkv_bias = rope_swiglu_gqa();
  qkv_bias.add_qkv_bias = true;
  ModelConfig all_biases = rope_swiglu_gqa();
  all_biases.add_bias_linear = true;
  ModelConfig head_norms = rope_swiglu_gqa();
  head_norms.qk_layernorm = true;
  ModelConfig centred_head_norms = learned_positions();
  centred_head_norms.qk_layernorm = true;
  ModelConfig latent = rope_swiglu_gqa();
  latent.num_query_groups = 0;
  latent.latent = {.enabled = true,
                   .q_lora_rank = 24,
                   .kv_lora_rank = 16,
                   .qk_head_dim = 8,
                   .qk_pos_emb_head_dim = 4,
                   .v_head_dim = 10};
  ModelConfig latent_keys = latent;
  latent_keys.latent.q_lora_rank = 0;
  latent_keys.normalization = Normalization::kLayerNorm;
  latent_keys.add_bias_linear = true;
  for (const ModelConfig& config : {latent, latent_keys, learned_positions(), rope_swiglu_gqa(), qkv_bias,
                                    all_biases, head_norms, centred_head_norms}) {
    std::int64_t count = 0;
    for (const CanonicalTensor& tensor : canonical_tensors(config)) count += tensor.shape.elems();
    EXPECT_EQ(count, parameter_count(config));
    EXPECT_EQ(megatron_map(config).canonical().size(), canonical_tensors(config).size());
  }
}

}  // namespace
}  // namespace weft
