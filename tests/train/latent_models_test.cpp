// Latent attention against transformers: the first layer of two DeepSeek-V3 models, which has no experts, on
// several layouts. The model is cut behind it; the reference's logits are made here from its hidden states.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/safetensors.hpp"
#include "support/golden.hpp"
#include "support/rank.hpp"
#include "train/convert.hpp"
#include "train/score.hpp"

namespace weft {
namespace {

using testing::golden;
using testing::TemporaryFolder;

// A model folder of the first layer alone.
void cut_model(const std::filesystem::path& from, const std::filesystem::path& to, const char* spelling) {
  std::filesystem::create_directories(to);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(from / spelling));
  config["num_hidden_layers"] = 1;
  std::ofstream(to / "config.json") << config;
  const SafetensorsFile file(from / "model.safetensors");
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : file.names()) {
    if (name.find(".layers.") == std::string::npos || name.find(".layers.0.") != std::string::npos) {
      tensors.emplace_back(name, file.get(name));
    }
  }
  write_safetensors(to / "model.safetensors", tensors);
}

// Logits of every row of `hidden` [B, S, h]: the final norm and the output layer, in double.
std::vector<double> logits_of(const Tensor& hidden, const Tensor& norm, const Tensor& output) {
  const std::int64_t h = hidden.columns();
  std::vector<double> all;
  for (std::int64_t row = 0; row < hidden.rows(); ++row) {
    const float* const x = hidden.data<float>() + row * h;
    double square = 0;
    for (std::int64_t i = 0; i < h; ++i) square += static_cast<double>(x[i]) * x[i];
    const double rstd = 1 / std::sqrt(square / static_cast<double>(h) + 1e-6);
    for (std::int64_t word = 0; word < output.dim(0); ++word) {
      double sum = 0;
      for (std::int64_t i = 0; i < h; ++i) {
        sum += x[i] * rstd * norm.data<float>()[i] * static_cast<double>(output.data<float>()[word * h + i]);
      }
      all.push_back(sum);
    }
  }
  return all;
}

struct Case {
  const char* model;
  int tp = 1, cp = 1;
  bool sequence_parallel = false;
  const char* method = "p2p";
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << " tp" << c.tp << (c.sequence_parallel ? " sp" : "") << " cp" << c.cp << " " << c.method;
}

class LatentModels : public ::testing::TestWithParam<Case> {
 protected:
  std::filesystem::path folder_ = golden(std::string("models/") + GetParam().model);
  TemporaryFolder scratch_;
};

TEST_P(LatentModels, FirstLayer) {
  const SafetensorsFile reference(folder_ / "tensors.safetensors"), weights(folder_ / "model.safetensors");
  write_safetensors(scratch_ / "tokens.safetensors",
                    {{"input_ids", reference.get("tokens")}, {"labels", reference.get("labels")}});
  const std::vector<double> expected = logits_of(
      reference.get("hidden.layer0"), weights.get("model.norm.weight"), weights.get("lm_head.weight"));
  for (const char* spelling : {"config.json", "config.legacy.json"}) {
    cut_model(folder_, scratch_ / spelling, spelling);
    ScoreOptions options;
    options.load = scratch_ / spelling;
    options.tokens = scratch_ / "tokens.safetensors";
    options.out = scratch_ / "out.safetensors";
    options.parallel.tensor_model_parallel_size = GetParam().tp;
    options.parallel.context_parallel_size = GetParam().cp;
    options.parallel.ranks = GetParam().tp * GetParam().cp;
    options.parallel.sequence_parallel = GetParam().sequence_parallel;
    options.parallel.cp_comm_type = {GetParam().method};
    run_score(options);
    const std::vector<double> found = testing::to_doubles(SafetensorsFile(options.out).get("logits"));
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4) << i;
  }
}

TEST_P(LatentModels, WrittenBackBitForBit) {
  if (GetParam().tp * GetParam().cp > 1) return;
  cut_model(folder_, scratch_ / "in", "config.json");
  run_convert({.from = scratch_ / "in", .to = scratch_ / "out", .format = "hf"});
  const SafetensorsFile in(scratch_ / "in" / "model.safetensors"),
      out(scratch_ / "out" / "model.safetensors");
  ASSERT_EQ(out.names().size(), in.names().size());
  for (const std::string& name : in.names())
    EXPECT_EQ(testing::difference(out.get(name), in.get(name)).max, 0) << name;
  const auto read = [&](const char* folder) {
    return nlohmann::json::parse(std::ifstream(scratch_ / folder / "config.json"));
  };
  const nlohmann::json config = read("in"), written = read("out");
  for (const char* field :
       {"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "head_dim",
        "v_head_dim", "rope_interleave", "rope_parameters", "num_key_value_heads"}) {
    EXPECT_EQ(written[field], config[field]) << field;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model : {"deepseek_v3", "deepseek_v3_yarn_noqlora"}) {
    all.push_back({.model = model});
    all.push_back({.model = model, .tp = 2});
    all.push_back({.model = model, .tp = 2, .sequence_parallel = true});
    all.push_back({.model = model, .cp = 2});
    all.push_back({.model = model, .cp = 2, .method = "a2a"});
    all.push_back({.model = model, .cp = 2, .method = "all_gather"});
  }
  all.push_back({.model = "deepseek_v3", .tp = 2, .cp = 2, .sequence_parallel = true, .method = "a2a"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, LatentModels, ::testing::ValuesIn(cases()), [](const auto& test) {
  const Case& c = test.param;
  return std::string(c.model) + "_tp" + std::to_string(c.tp) + (c.sequence_parallel ? "_sp" : "") + "_cp" +
         std::to_string(c.cp) + "_" + c.method;
});

}  // namespace
}  // namespace weft
