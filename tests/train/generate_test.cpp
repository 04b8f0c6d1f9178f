#include "train/generate.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "checkpoint/checkpoint.hpp"
#include "core/check.hpp"
#include "core/gpu.hpp"
#include "data/tokenizer.hpp"
#include "infer/generator.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVocabulary = 262;  // of the model; the tokenizer knows 259

// Random weights under their names: what a training run would have left.
class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(const ModelConfig& config) : arena_(Arena::host(16 << 20)), workers_(1) {
    Lane lane{*arena_, workers_, {}};
    const auto self = self_communicator("tp");
    Generator generator(lane, *self, config, DType::kF32, 64);
    for (const ParamBuffer::Slot& slot : generator.weights().slots()) {
      const Tensor weight = ParamBuffer::piece(generator.weights().weights(), slot);
      initialize(lane, *slot.param, weight, RandomKey{5});
      for (const LogicalTensor& part : slot.param->parts()) {
        const Tensor local = slot.param->part_of(weight, part);
        const float* x = local.data<float>();
        Stored& stored = tensors_[part.name];
        stored = {part.global, std::vector<float>(x, x + part.global.elems())};
      }
    }
  }
  std::string description() const override { return "random weights"; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, stored] : tensors_) all.push_back(name);
    return all;
  }
  bool contains(const std::string& name) const override { return tensors_.contains(name); }
  Shape shape(const std::string& name) const override { return tensors_.at(name).shape; }
  void read(Lane&, const std::string& name, int dim, std::int64_t begin, std::int64_t count,
            const Tensor& out) const override {
    const Stored& stored = tensors_.at(name);
    const bool whole = dim < 0 || (begin == 0 && count == stored.shape[dim]);
    ASSERT_TRUE(whole || dim == 0);
    const std::int64_t row = stored.shape.elems() / stored.shape[0];
    const float* from = stored.values.data() + (whole ? 0 : begin * row);
    std::copy(from, from + out.elems(), out.data<float>());
  }

 private:
  struct Stored {
    Shape shape;
    std::vector<float> values;
  };
  std::unique_ptr<Arena> arena_;
  Workers workers_;
  std::map<std::string, Stored> tensors_;
};

// A checkpoint of a tiny model with a tokenizer of single bytes, an end token, and two tokens of several
// bytes.
class Generate : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("weft_generate_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    ModelConfig config;
    config.num_layers = 2;
    config.hidden_size = 32;
    config.num_attention_heads = 4;
    config.ffn_hidden_size = 48;
    config.vocab_size = kVocabulary;
    config.max_position_embeddings = 48;
    config.init_method_std = 0.3;
    config.tied = false;
    config = resolved(config);
    TokenizerModel model;
    for (int byte = 0; byte < 256; ++byte) model.tokens.push_back(std::string(1, static_cast<char>(byte)));
    model.tokens.push_back("th");
    model.merges.push_back({'t', 'h'});
    model.tokens.push_back("the");
    model.merges.push_back({256, 'e'});
    model.added.push_back({.id = 258, .content = "<|endoftext|>", .special = true});
    const RandomWeights weights(config);
    const auto arena = Arena::host(1 << 20);
    Workers workers(1);
    Lane lane{*arena, workers, {}};
    write_weights(lane, weights,
                  {.model = to_json(config), .extra_files = {{"tokenizer.json", Tokenizer(model).to_json()}}},
                  folder_ / "text");
    write_weights(lane, weights, {.model = to_json(config), .extra_files = {}}, folder_ / "ids");
    tokenizer_ = std::make_unique<Tokenizer>(model);
  }
  static void TearDownTestSuite() {
    fs::remove_all(folder_);
    tokenizer_.reset();
  }

  GenerateOptions options(const char* which) const {
    GenerateOptions o;
    o.load = (folder_ / which).string();
    o.max_new_tokens = 12;
    o.sampling.seed = 3;
    o.tokens_out = (folder_ / "out.txt").string();
    o.cpu_threads = 1;
    o.parallel.device = ParallelConfig::Device::kCpu;
    return o;
  }
  // What was printed; the calls apart from each other in pieces_.
  std::string run(const GenerateOptions& o) {
    pieces_.clear();
    std::string text;
    run_generate(o, [&](std::string_view piece) {
      pieces_.emplace_back(piece);
      text += piece;
    });
    return text;
  }
  static std::vector<std::string> lines(const std::string& text) {
    std::vector<std::string> all;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      all.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return all;
  }
  static std::string problem_of(const GenerateOptions& o) {
    try {
      run_generate(o, [](std::string_view) {});
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  }

  static inline fs::path folder_;
  static inline std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::string> pieces_;
};

bool valid_utf8(const std::string& text) {
  std::size_t left = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (left > 0) {
      if ((byte & 0xC0) != 0x80) return false;
      --left;
    } else if (byte >= 0x80) {
      if (byte < 0xC2 || byte > 0xF4) return false;
      left = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    }
  }
  return left == 0;
}

TEST_F(Generate, TextAsItComes) {
  GenerateOptions o = options("text");
  o.prompt = "Grüße, the";
  o.prompt_given = true;
  o.ignore_eos = true;
  const std::string text = run(o);
  EXPECT_TRUE(text.starts_with("Grüße, the"));
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(pieces_[0], "Grüße, the");
  EXPECT_GT(pieces_.size(), 4u);  // not all at the end
  for (const std::string& piece : pieces_) EXPECT_TRUE(valid_utf8(piece)) << piece;
  const std::string ids = read_file(o.tokens_out);
  std::string prompt;
  for (const std::int32_t id : tokenizer_->encode(o.prompt)) prompt += std::to_string(id) + " ";
  EXPECT_TRUE(ids.starts_with(prompt)) << ids;
  EXPECT_EQ(static_cast<std::size_t>(std::count(ids.begin(), ids.end(), ' ')),
            tokenizer_->encode(o.prompt).size() + 12 - 1);
}

TEST_F(Generate, WithoutATokenizerIds) {
  GenerateOptions o = options("ids");
  o.prompt_tokens = "71, 114,257";
  const std::string text = run(o);
  EXPECT_TRUE(text.starts_with("71 114 257 ")) << text;
  EXPECT_EQ(text, read_file(o.tokens_out));
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 14);
  EXPECT_EQ(pieces_.size(), 13u);  // the prompt, then one by one
  EXPECT_EQ(run(o), text);
  o.sampling.seed = 4;
  EXPECT_NE(run(o), text);
}

TEST_F(Generate, WithoutADtypeTheCpuTakesFp32) {
  GenerateOptions o = options("ids");
  o.prompt_tokens = "71, 114,257";
  const std::string text = run(o);
  o.dtype = "fp32";
  EXPECT_EQ(run(o), text);
  o.dtype = "fp31";
  EXPECT_NE(problem_of(o).find("--dtype fp31"), std::string::npos);
}

TEST_F(Generate, ACudaDeviceThatIsNotThereIsNamed) {
  if (!find_gpus().list.empty()) GTEST_SKIP() << "there is one";
  GenerateOptions o = options("ids");
  o.prompt_tokens = "1";
  o.parallel.device = ParallelConfig::Device::kCuda;
  const std::string text = problem_of(o);
  EXPECT_NE(text.find("--device cuda: "), std::string::npos) << text;
  EXPECT_NE(text.find(find_gpus().why_none), std::string::npos) << text;
}

TEST_F(Generate, PromptsOfAFileInOrderAndAsAlone) {
  GenerateOptions o = options("ids");
  o.prompt_file = (folder_ / "prompts.txt").string();
  write_file(o.prompt_file, "1 2 3 4 5 6 7\n8\r\n9,10,11");
  o.sampling.temperature = 0;
  const std::string text = run(o);
  EXPECT_EQ(text, read_file(o.tokens_out));
  const std::vector<std::string> rows = lines(text);
  ASSERT_EQ(rows.size(), 3u);
  for (std::size_t row = 0; row < 3; ++row) {
    GenerateOptions one = options("ids");
    one.sampling.temperature = 0;
    one.prompt_tokens = std::vector<std::string>{"1 2 3 4 5 6 7", "8", "9,10,11"}[row];
    EXPECT_EQ(run(one), rows[row] + "\n");
  }
}

TEST_F(Generate, EndsAtTheEndOfText) {
  GenerateOptions o = options("text");
  o.prompt = "x";
  o.prompt_given = true;
  o.max_new_tokens = 40;
  std::size_t stopped = 0;
  for (o.sampling.seed = 0; o.sampling.seed < 30; ++o.sampling.seed) {
    const std::string text = run(o);
    EXPECT_EQ(text.find("endoftext"), std::string::npos);
    const std::string ids = read_file(o.tokens_out);
    if (ids.ends_with(" 258\n")) ++stopped;
    const std::size_t at = ids.find(" 258");
    EXPECT_TRUE(at == std::string::npos || at + 5 == ids.size()) << ids;
  }
  EXPECT_GT(stopped, 0u);
}

TEST_F(Generate, NoNewTokensShowsThePrompt) {
  GenerateOptions o = options("ids");
  o.prompt_tokens = "5 6";
  o.max_new_tokens = 0;
  EXPECT_EQ(run(o), "5 6\n");
  EXPECT_EQ(read_file(o.tokens_out), "5 6\n");
}

TEST_F(Generate, ProblemsBeforeAnything) {
  GenerateOptions o = options("ids");
  fs::remove(o.tokens_out);
  EXPECT_NE(problem_of(o).find("none of --prompt, --prompt-tokens and --prompt-file"), std::string::npos);
  o.prompt_tokens = "1 2";
  o.prompt_given = true;
  EXPECT_NE(problem_of(o).find("several of"), std::string::npos);
  o.prompt_given = false;
  o.prompt_tokens = "1 2 x3";
  EXPECT_NE(problem_of(o).find("--prompt-tokens: \"x3\" is not a token id"), std::string::npos);
  o.prompt_tokens = "1 262";
  o.max_new_tokens = 47;
  o.sampling.top_p = 1.5;
  o.parallel.ranks = 3;
  const std::string all = problem_of(o);
  EXPECT_NE(all.find("token 262"), std::string::npos) << all;
  EXPECT_NE(all.find("--max-new-tokens can be at most 46"), std::string::npos) << all;
  EXPECT_NE(all.find("--top-p 1.5"), std::string::npos) << all;
  EXPECT_NE(all.find("--ranks 3"), std::string::npos) << all;
  o = options("ids");
  o.prompt = "text";
  o.prompt_given = true;
  EXPECT_NE(problem_of(o).find("has no tokenizer"), std::string::npos);
  EXPECT_FALSE(fs::exists(o.tokens_out));
}

}  // namespace
}  // namespace weft
