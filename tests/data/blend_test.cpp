#include "data/blend.hpp"

#include <nlohmann/json.hpp>

#include "data/indexed_dataset.hpp"
#include "data/loader.hpp"
#include "data/support.hpp"
#include "io/safetensors.hpp"

namespace weft {
namespace {

using test::golden;
using test::holds;
using test::message_of;
using test::slurp;

template <class T>
std::vector<std::int64_t> as_i64(const Tensor& tensor) {
  return {tensor.values<T>().begin(), tensor.values<T>().end()};
}

void expect_index(const BlendIndex& ours, const SafetensorsFile& file, const std::string& name) {
  EXPECT_EQ((std::vector<std::int64_t>{ours.dataset.begin(), ours.dataset.end()}),
            as_i64<std::int16_t>(file.get(name + "dataset_index")))
      << name;
  EXPECT_EQ(ours.sample, as_i64<std::int64_t>(file.get(name + "dataset_sample_index"))) << name;
}

nlohmann::json golden_case(const std::string& name) {
  return nlohmann::json::parse(slurp(golden("data/manifest.json")))["cases"][name];
}

TEST(Blend, OrdersAreMegatrons) {
  const SafetensorsFile file(golden("data/blending_indices.safetensors"));
  const auto cases = golden_case("blending_indices");
  for (const auto& [name, weights] : cases["weights"].items())
    for (const int size : {20, 257, 1000})
      expect_index(blend_by_weight(weights.get<std::vector<double>>(), size), file,
                   fmt::format("{}.n{}.", name, size));
  expect_index(blend_all(as_i64<std::int64_t>(file.get("exhaustive.sizes"))), file, "exhaustive.");
}

// Megatron's builder over three files: order and samples.
class GoldenBlend : public testing::TestWithParam<const char*> {};

TEST_P(GoldenBlend, IsExact) {
  const auto c = golden_case(GetParam());
  const SafetensorsFile file(golden(std::string("data/") + GetParam() + ".safetensors"));
  std::vector<std::shared_ptr<const TokenSource>> sources;
  for (const auto& name : c["files"])
    sources.push_back(std::make_shared<IndexedDataset>(golden("data/" + name.get<std::string>())));
  const auto weights =
      c["weights"].is_null() ? std::vector<double>{} : c["weights"].get<std::vector<double>>();
  const auto sizes = c["sizes"].get<std::vector<std::int64_t>>();
  GptDatasetOptions options;
  options.sequence_length = 16;
  const BlendedSplits splits =
      build_blended_splits(sources, weights, c["split"], {sizes[0], sizes[1], sizes[2]}, options);
  int compared = 0;
  for (const auto& [name, part] : {std::pair<std::string, const BlendedDataset*>{"train", splits.train.get()},
                                   {"valid", splits.validation.get()},
                                   {"test", splits.test.get()}}) {
    ASSERT_EQ(part == nullptr, c[name].is_null()) << name;
    if (part == nullptr) continue;
    EXPECT_EQ(part->size(), c[name]["len"].get<std::int64_t>());
    expect_index(part->index(), file, name + ".");
    const auto tokens = as_i64<std::int64_t>(file.get(name + ".tokens"));
    const auto labels = as_i64<std::int64_t>(file.get(name + ".labels"));
    GptSample sample;
    for (std::size_t i = 0; i < tokens.size() / 16; ++i, ++compared) {
      part->sample(static_cast<std::int64_t>(i), sample);
      for (std::size_t k = 0; k < 16; ++k) {
        ASSERT_EQ(sample.tokens[k], tokens[i * 16 + k]) << name << " " << i;
        ASSERT_EQ(sample.labels[k], labels[i * 16 + k]) << name << " " << i;
      }
    }
  }
  EXPECT_GE(compared, 30);
}
INSTANTIATE_TEST_SUITE_P(Cases, GoldenBlend, testing::Values("blend_train", "blend_split", "blend_noweights"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Blend, ReadsTheWordsOfDataPath) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(parse_blend(Words{"a"}).prefixes, Words{"a"});
  EXPECT_EQ(parse_blend(Words{"a", "b"}).prefixes, (Words{"a", "b"}));
  EXPECT_EQ(parse_blend(Words{"0.3", "b", "7"}).prefixes, (Words{"0.3", "b", "7"}));
  const BlendWords blend = parse_blend(Words{"0.3", "a", "7", "b"});
  EXPECT_EQ(blend.prefixes, (Words{"a", "b"}));
  EXPECT_EQ(blend.weights, (std::vector<double>{0.3, 7}));
  EXPECT_TRUE(holds(message_of<ConfigError>([] { parse_blend(Words{}); }), {"--data-path"}));
  EXPECT_TRUE(holds(message_of<ConfigError>([] {
                      parse_blend(Words{"1", "a", "x", "b"});
                    }),
                    {"--data-path", "\"x\""}));
  EXPECT_TRUE(holds(message_of<ConfigError>([] {
                      parse_blend(Words{"1", "a", "0", "b"});
                    }),
                    {"weight 0 of b"}));
}

TEST(Blend, EverySplitOfEverySourceIsChecked) {
  const auto tiny = [](const char* name) {
    return std::make_shared<MemoryTokens>(std::vector<std::int32_t>{1, 2, 3}, std::vector<std::int32_t>{3},
                                          name);
  };
  const std::vector<std::shared_ptr<const TokenSource>> sources{tiny("one"), tiny("two")};
  GptDatasetOptions options;
  options.sequence_length = 2;
  const std::vector<double> weights{1, 1};
  const auto text = message_of<ConfigError>([&] {
    build_blended_splits(sources, weights, "9,1", {4, 4, 0}, options);
  });
  EXPECT_TRUE(holds(text, {"validation split gets 0 of the 1 documents of one", "of two"}));
}

TEST(Blend, LoadsLikeAnyDataset) {
  const std::vector<std::shared_ptr<const TokenSource>> sources{
      std::make_shared<MemoryTokens>(std::vector<std::int32_t>{1, 1, 1, 1, 1}, std::vector<std::int32_t>{5},
                                     "ones"),
      std::make_shared<MemoryTokens>(std::vector<std::int32_t>{2, 2, 2, 2, 2}, std::vector<std::int32_t>{5},
                                     "twos")};
  GptDatasetOptions options;
  options.sequence_length = 2;
  const std::vector<double> weights{3, 1};
  const BlendedSplits splits = build_blended_splits(sources, weights, "1", {8, 0, 0}, options);
  Loader loader(*splits.train);
  Batch batch;
  loader.load({.global_batch = 8, .micro_batch = 8, .dp_size = 1}, 0, 0, 0, batch);
  EXPECT_EQ(std::count(batch.tokens.begin(), batch.tokens.end(), 1), 12);
  EXPECT_EQ(std::count(batch.tokens.begin(), batch.tokens.end(), 2), 4);
}

}  // namespace
}  // namespace weft
