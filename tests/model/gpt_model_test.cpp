// Whole models: derivatives in double, tensor-parallel ranks against one, drain points, memory of a step.
#include <gtest/gtest.h>

#include <mutex>

#include "comm/local/launcher.hpp"
#include "support/check_module.hpp"
#include "support/rank.hpp"

namespace weft {
namespace {

using testing::random_batch;
using testing::TestModel;
using testing::TestRank;

ModelConfig gpt2_like() {
  ModelConfig c;
  c.num_layers = 2;
  c.hidden_size = 16;
  c.num_attention_heads = 4;
  c.ffn_hidden_size = 24;
  c.vocab_size = 37;
  c.make_vocab_size_divisible_by = 3;
  c.max_position_embeddings = 16;
  c.hidden_dropout = 0.2;
  c.attention_dropout = 0.1;
  return c;
}

ModelConfig llama_like() {
  ModelConfig c = gpt2_like();
  c.num_attention_heads = 8;
  c.num_query_groups = 4;
  c.kv_channels = 6;  // not hidden / heads
  c.position_embedding = PositionEmbedding::kRope;
  c.normalization = Normalization::kRmsNorm;
  c.activation = ops::Activation::kSilu;
  c.gated = true;
  c.add_bias_linear = false;
  c.tied = false;
  c.hidden_dropout = c.attention_dropout = 0;
  return c;
}

ModelConfig with_head_norms(ModelConfig c) {
  c.qk_layernorm = true;
  return c;
}

// Heads of other sizes for queries and values: 4 + 2 rotated, and 3 or (wider than them) 7.
ModelConfig latent(std::int64_t q_rank, std::int64_t value) {
  ModelConfig c = llama_like();
  c.num_query_groups = c.kv_channels = 0;
  c.rotary_interleaved = true;
  c.rope_scaling = {.kind = RopeScaling::Kind::kYarn,
                    .factor = 4,
                    .original_max_position_embeddings = 8,
                    .mscale_all_dim = 0.8};
  c.latent = {.enabled = true,
              .q_lora_rank = q_rank,
              .kv_lora_rank = 5,
              .qk_head_dim = 4,
              .qk_pos_emb_head_dim = 2,
              .v_head_dim = value};
  return c;
}
// With the output bias and norms that have one.
ModelConfig centred(ModelConfig c) {
  c.normalization = Normalization::kLayerNorm;
  c.add_bias_linear = true;
  return c;
}

struct Family {
  const char* name;
  ModelConfig config;
};
void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name;
}

class GptModelTest : public ::testing::TestWithParam<Family> {
 protected:
  ModelConfig config() const { return GetParam().config; }
};
INSTANTIATE_TEST_SUITE_P(Families, GptModelTest,
                         ::testing::Values(Family{"Gpt2", gpt2_like()}, Family{"Llama", llama_like()},
                                           Family{"Gpt2HeadNorms", with_head_norms(gpt2_like())},
                                           Family{"Qwen3", with_head_norms(llama_like())},
                                           Family{"Latent", latent(6, 3)}, Family{"LatentKeys", latent(0, 7)},
                                           Family{"LatentCentred", centred(latent(6, 6))}),
                         [](const auto& which) { return std::string(which.param.name); });

// Whatever is frozen, down to one tensor of a norm or of a linear, what is not has the gradient that it has
// anyway, bit for bit, over several microbatches; the frozen have none, and keep nothing of the forward pass.
TEST_P(GptModelTest, FrozenTensorsLeaveTheGradientsOfTheOthers) {
  TestRank rank;
  const auto tp = self_communicator("tp");
  const std::vector<MicrobatchData> batches{random_batch(rank.lane(), 2, 7, 37, 5, 4),
                                            random_batch(rank.lane(), 2, 7, 37, 6, 3)};
  const auto run = [&](const std::vector<std::string>& freeze, DrainPoint drain) {
    ModelSpec spec = local_spec(config());
    spec.freeze = freeze;
    TestModel model(rank.lane(), *tp, spec, DType::kF64, 8, 1);
    const double loss = model.run(batches, drain);
    std::int64_t frozen = 0;
    for (const auto& param : model.params().all()) {
      const bool is = is_frozen(spec, param->parts().front().name);
      EXPECT_EQ(param->trains(), !is) << param->name();
      EXPECT_EQ(param->main_grad().defined(), !is) << param->name();
      if (is && param->owner() == nullptr) frozen += param->local_shape().elems();
    }
    std::int64_t trained = 0;
    for (const ParamBuffer::Slot& slot : model.buffer().slots()) {
      EXPECT_TRUE(slot.param->trains()) << slot.param->name();
      trained += slot.elems;
    }
    std::int64_t laid_out = 0;
    for (const ParamBuffer::Slot& slot : model.buffer().frozen()) laid_out += slot.elems;
    EXPECT_EQ(laid_out, frozen);
    EXPECT_GT(trained, 0);
    return std::pair{loss, model.gathered_gradients()};
  };
  const auto [loss, all] = run({}, DrainPoint::kLinear);
  std::vector<std::vector<std::string>> cases{{"decoder.layers.0.*"},
                                              {"decoder.layers.1.*"},
                                              {"embedding.*"},
                                              {"*layernorm.weight"},
                                              {"*layernorm.*"},
                                              {"*.linear_?.weight", "*.linear_?.bias"},
                                              {"*.linear_proj.weight"},
                                              {"*.mlp.*"},
                                              {"*.linear_fc2.weight", "*.k*"},
                                              {"decoder.final_layernorm.*"},
                                              {"embedding.*", "decoder.l*"},
                                              {"*"}};
  cases.back() =
      config().tied ? std::vector<std::string>{"*.bias"} : std::vector<std::string>{"output_layer.weight"};
  if (config().qk_layernorm) cases.push_back({"*.q_layernorm.*"});
  if (config().latent.enabled) {
    std::erase_if(cases, [](const auto& names) { return names.front() == "*.linear_?.weight"; });
    cases.push_back({"*_down_proj.weight"});
    cases.push_back({"*.linear_kv_up_proj.weight", "*.kv_layernorm.weight"});
  }
  if (config().tied) {
    cases.push_back({"*layernorm.bias"});
    cases.push_back({"*.linear_fc1.weight"});
    cases.push_back({"*.linear_fc1.bias", "*.linear_proj.bias"});
    cases.push_back({"*.position_embeddings.weight"});
  }
  for (const std::vector<std::string>& freeze : cases) {
    for (const DrainPoint drain : {DrainPoint::kLinear, DrainPoint::kSchedule}) {
      const auto [same_loss, gradients] = run(freeze, drain);
      EXPECT_EQ(same_loss, loss);
      ModelSpec spec;
      spec.freeze = freeze;
      std::size_t expected = 0;
      for (const auto& [name, values] : all) {
        if (is_frozen(spec, name)) {
          EXPECT_FALSE(gradients.contains(name)) << name;
          continue;
        }
        ++expected;
        ASSERT_TRUE(gradients.contains(name)) << name << " with " << freeze.front();
        EXPECT_EQ(gradients.at(name), values) << name << " with " << freeze.front();
      }
      EXPECT_EQ(gradients.size(), expected);
      EXPECT_LT(expected, all.size()) << freeze.front() << " freezes nothing";
    }
  }
}

TEST(ModelSpecTest, PatternsOfFrozenTensors) {
  const auto frozen = [](const std::string& pattern, const std::string& name) {
    ModelSpec spec;
    spec.freeze = {"nothing", pattern};
    return is_frozen(spec, name);
  };
  EXPECT_FALSE(is_frozen(ModelSpec{}, "a.b"));
  EXPECT_TRUE(frozen("a.b", "a.b"));
  EXPECT_FALSE(frozen("a.b", "a.b.c"));
  EXPECT_FALSE(frozen("a.b", "0a.b"));
  EXPECT_TRUE(frozen("a.*", "a.b.c"));
  EXPECT_TRUE(frozen("*.c", "a.b.c"));
  EXPECT_TRUE(frozen("*.b.*", "a.b.c"));
  EXPECT_TRUE(frozen("*b*c", "a.b.b.c"));
  EXPECT_FALSE(frozen("*b*c", "a.b.b.d"));
  EXPECT_TRUE(frozen("layers.?.x", "layers.3.x"));
  EXPECT_FALSE(frozen("layers.?.x", "layers.13.x"));
  EXPECT_TRUE(frozen("*", "a"));
  EXPECT_TRUE(frozen("a**", "a"));
  EXPECT_FALSE(frozen("a?", "a"));
  EXPECT_FALSE(frozen("a+b", "aab"));
}

TEST_P(GptModelTest, GradientsEqualFiniteDifferences) {
  TestRank rank;
  const auto tp = self_communicator("tp");
  TestModel model(rank.lane(), *tp, local_spec(config()), DType::kF64, 8, 1);
  const MicrobatchData batch = random_batch(rank.lane(), 2, 7, 37, 5, 4);
  model.run({batch});
  std::vector<testing::Derivative> derivatives;
  for (const auto& param : model.params().all()) {
    // A tied weight's derivative is the sum of both uses; the owner has it.
    // Without rotation a bias of all keys moves every score of a query alike: its derivative is only
    // rounding.
    const bool nothing = param->name().ends_with("k_layernorm.bias") &&
                         config().position_embedding != PositionEmbedding::kRope;
    if (param->owner() == nullptr && !nothing)
      derivatives.push_back({param->name(), param->weight(), param->main_grad()});
  }
  testing::check_derivatives([&] { return model.loss(batch); }, derivatives, 5e-6, 12);
}

TEST_P(GptModelTest, TensorParallelRanksEqualOne) {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
  for (const int ranks : {1, 2, 4}) {
    run_local_ranks({.ranks = ranks}, [&](Communicator& tp) {
      TestRank rank;
      TestModel model(rank.lane(), tp, local_spec(config()), DType::kF64, 8, 1);
      const double sum =
          model.run({random_batch(rank.lane(), 2, 7, 37, 5, 4), random_batch(rank.lane(), 2, 7, 37, 6)});
      const auto all = model.gathered_gradients();
      if (tp.rank() != 0) return;
      if (ranks == 1) {
        loss = sum;
        gradients = all;
        return;
      }
      EXPECT_NEAR(sum, loss, 1e-10 * loss);
      std::string worst;
      EXPECT_LT(testing::gradient_difference(all, gradients, &worst), 1e-10) << worst;
    });
  }
}

TEST_P(GptModelTest, DrainPointsChangeNoBit) {
  std::map<std::string, std::vector<double>> reference;
  for (const DrainPoint drain :
       {DrainPoint::kLinear, DrainPoint::kLayer, DrainPoint::kStage, DrainPoint::kSchedule}) {
    TestRank rank;
    const auto tp = self_communicator("tp");
    TestModel model(rank.lane(), *tp, local_spec(config()), DType::kF32, 8, 1);
    model.run({random_batch(rank.lane(), 2, 7, 37, 5), random_batch(rank.lane(), 2, 7, 37, 6)}, drain);
    const auto gradients = model.gathered_gradients();
    if (reference.empty()) reference = gradients;
    EXPECT_EQ(gradients, reference);
  }
}

TEST(GptModel, PrintsItsSpec) {
  const std::string text = to_string(local_spec(llama_like()));
  EXPECT_NE(text.find("8 heads of 6, 4 key/value groups"), std::string::npos) << text;
  EXPECT_NE(text.find("layers 0 to 1"), std::string::npos) << text;
}

TEST(GptModel, RefusesWhatDoesNotDivide) {
  const std::vector<std::string> problems = validate(local_spec(llama_like()), 3, {});
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_NE(problems[0].find("--num-attention-heads 8"), std::string::npos);
  EXPECT_NE(problems[1].find("--num-query-groups 4"), std::string::npos);
}

}  // namespace
}  // namespace weft
