#include "train/options.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>

#include "core/check.hpp"
#include "train/engine.hpp"
#include "train/nearest.hpp"

namespace weft {
namespace {

// A model and run that are fine by themselves; tests add to it.
const std::vector<std::string> kBase = {
    "--num-layers", "2",   "--hidden-size", "32", "--num-attention-heads", "4",
    "--vocab-size", "64",  "--seq-length",  "16", "--train-iters",         "10",
    "--lr",         "0.5", "--data-path",   "d"};

struct Outcome {
  TrainConfig config;
  std::vector<std::string> problems;
  std::string printed;

  std::string all() const {
    std::string text;
    for (const std::string& problem : problems) text += problem + "\n";
    return text;
  }
};

Outcome parse(std::vector<std::string> args, bool with_base = true) {
  Outcome outcome;
  OptionSet options("weft train", "trains");
  add_train_options(options, outcome.config);
  if (with_base) args.insert(args.begin(), kBase.begin(), kBase.end());
  try {
    parse_train_options(options, outcome.config, args);
    const TrainConfig read = outcome.config;
    outcome.printed = options.to_toml();
    outcome.config = read;  // whatever printing did to the bound variables
  } catch (const ConfigError& e) {
    outcome.problems = e.problems;
  }
  return outcome;
}

// The base with one option replaced.
Outcome parse_with(const std::string& option, const std::string& value) {
  std::vector<std::string> args;
  for (std::size_t i = 0; i < kBase.size(); i += 2) {
    if (kBase[i] != option) args.insert(args.end(), {kBase[i], kBase[i + 1]});
  }
  args.insert(args.end(), {option, value});
  return parse(args, false);
}

class TomlFile {
 public:
  explicit TomlFile(const std::string& text) {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("weft_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + "_" +
               std::to_string(count()++));
    std::filesystem::create_directories(folder_);
    std::ofstream(path()) << text;
  }
  ~TomlFile() { std::filesystem::remove_all(folder_); }
  std::string path() const { return (folder_ / "run.toml").string(); }
  // Nothing was written beside it.
  bool alone() const {
    return std::distance(std::filesystem::directory_iterator(folder_),
                         std::filesystem::directory_iterator{}) == 1;
  }

 private:
  static int& count() {
    static int n = 0;
    return n;
  }
  std::filesystem::path folder_;
};

void expect_one_problem(const Outcome& outcome, std::initializer_list<const char*> parts) {
  EXPECT_EQ(outcome.problems.size(), 1u) << outcome.all();
  for (const char* part : parts)
    EXPECT_NE(outcome.all().find(part), std::string::npos) << part << "\nin " << outcome.all();
}

TEST(Options, ReadsTheBase) {
  const Outcome outcome =
      parse({"--swiglu", "--normalization=RMSNorm", "--no-calculate-per-token-loss", "--adam-eps", "1e-6",
             "--ranks", "3", "--micro-batch-size", "2", "--disable-bias-linear",
             "--untie-embeddings-and-output-weights", "--lr-warmup-init=0"});
  ASSERT_TRUE(outcome.problems.empty()) << outcome.all();
  const TrainConfig& c = outcome.config;
  EXPECT_EQ(c.model.num_layers, 2);
  EXPECT_EQ(c.model.activation, ops::Activation::kSilu);
  EXPECT_TRUE(c.model.gated);
  EXPECT_EQ(c.model.normalization, Normalization::kRmsNorm);
  EXPECT_FALSE(c.model.add_bias_linear);
  EXPECT_FALSE(c.model.tied);
  EXPECT_FALSE(c.training.calculate_per_token_loss);
  EXPECT_EQ(c.optimizer.adam_eps, 1e-6);
  EXPECT_EQ(c.training.global_batch_size, 6);  // resolved
  EXPECT_EQ(c.model.max_position_embeddings, 16);
  EXPECT_EQ(c.data.data_path, std::vector<std::string>{"d"});
}

TEST(Options, FrozenTensorsAreAListOfPatterns) {
  const std::vector<std::string> patterns{"embedding.*", "decoder.layers.0.*"};
  const Outcome outcome = parse({"--freeze", patterns[0], patterns[1], "--bf16"});
  EXPECT_EQ(outcome.all(), "");
  EXPECT_EQ(outcome.config.training.freeze, patterns);
  EXPECT_EQ(EngineOptions::from(outcome.config).freeze, patterns);
  expect_one_problem(parse({"--freeze", "embeddings.*"}), {"--freeze embeddings.*", "embedding.*"});
  expect_one_problem(parse({"--freeze-layers", "1"}), {"--freeze-layers", "did you mean --freeze?"});
}

struct Bad {
  std::vector<std::string> args;
  std::vector<const char*> parts;
};

TEST(Options, EachBadWordOfTheCommandLineIsNamed) {
  const std::vector<Bad> cases = {
      {{"--learning-rat", "1"}, {"--learning-rat 1", "did you mean --lr?"}},
      {{"--tensor-paralel", "2"}, {"--tensor-paralel 2", "--tensor-model-parallel-size"}},
      {{"--num_layers", "3"}, {"--num_layers 3", "--num-layers"}},
      {{"--use-distributed-optimiser"}, {"--use-distributed-optimiser", "--use-distributed-optimizer"}},
      {{"--min-lr", "abc"}, {"--min-lr abc", "a number"}},
      {{"--min-lr", "nan"}, {"--min-lr nan", "a number"}},
      {{"--min-lr", "1e-3x"}, {"--min-lr 1e-3x"}},
      {{"--distributed-timeout-seconds", "1e300"},
       {"--distributed-timeout-seconds 1e300", "at most 1000000000"}},
      {{"--distributed-timeout-seconds", "1e-9"}, {"--distributed-timeout-seconds 1e-9", "at least 0.001"}},
      {{"--eval-iters", "2.5"}, {"--eval-iters 2.5", "an integer"}},
      {{"--micro-batch-size", "-1"}, {"--micro-batch-size -1", "from 1"}},
      {{"--global-batch-size", "1099511627776"}, {"1099511627776", "to 2147483647"}},
      {{"--global-batch-size", "99999999999999999999"}, {"99999999999999999999"}},
      {{"--optimizer", "adan"}, {"--optimizer adan", "adam, sgd", "did you mean adam?"}},
      {{"--bf16=maybe"}, {"--bf16 maybe", "true or false"}},
      {{"--seed", "7", "--seed", "8"}, {"--seed", "7", "8", "twice"}},
      {{"--bf16", "--no-bf16"}, {"--bf16", "twice", "true", "false"}},
      {{"--swiglu", "--squared-relu"},
       {"--activation", "silu", "squared_relu", "--swiglu", "--squared-relu"}},
      {{"--context-parallel-size", "2097152"}, {"--context-parallel-size 2097152", "to 1048576"}},
      {{"--save"}, {"--save needs a value"}},
      {{"--save", "--bf16"}, {"--save needs a value"}},
      {{"--rampup-batch-size", "1", "2"}, {"--rampup-batch-size needs 3 values"}},
      {{"--preset", "demos"}, {"--preset demos", "did you mean demo?"}},
      {{"--preset", "gtp2"}, {"--preset gtp2", "did you mean gpt2-"}},
      {{"--config", "/nowhere/run.toml"}, {"/nowhere/run.toml"}},
  };
  for (const Bad& bad : cases) {
    const Outcome outcome = parse(bad.args);
    EXPECT_EQ(outcome.problems.size(), bad.args.front() == "--swiglu" ? 2u : 1u) << outcome.all();
    for (const char* part : bad.parts) {
      EXPECT_NE(outcome.all().find(part), std::string::npos) << part << "\nin " << outcome.all();
    }
  }
  expect_one_problem(parse_with("--lr", "abc"), {"--lr abc: a number"});
  expect_one_problem(parse_with("--num-layers", "2.5"), {"--num-layers 2.5: an integer"});
  expect_one_problem(parse_with("--num-layers", "-1"), {"--num-layers -1: an integer from 1"});
  expect_one_problem(parse_with("--seq-length", "1099511627776"), {"--seq-length 1099511627776"});
  // What follows from an unreadable option is not reported too.
  expect_one_problem(parse_with("--learning-rate", "1"), {"did you mean --lr?"});
}

// Options of a pipeline and of recomputation under Megatron's names.
TEST(Options, PipelineAndRecomputation) {
  TrainConfig c;
  OptionSet options("weft train", "trains");
  add_train_options(options, c);
  const std::vector<std::string> args = {"--num-layers-per-virtual-pipeline-stage",
                                         "2",
                                         "--microbatch-group-size-per-virtual-pipeline-stage",
                                         "8",
                                         "--decoder-first-pipeline-num-layers",
                                         "3",
                                         "--decoder-last-pipeline-num-layers",
                                         "4",
                                         "--account-for-embedding-in-pipeline-split",
                                         "--account-for-loss-in-pipeline-split",
                                         "--pipeline-model-parallel-layout",
                                         "Et*3|(tt|)*29,L",
                                         "--no-overlap-p2p-communication",
                                         "--tp-comm-overlap",
                                         "--recompute-granularity",
                                         "full",
                                         "--recompute-method",
                                         "block",
                                         "--recompute-num-layers",
                                         "5",
                                         "--recompute-modules",
                                         "mlp",
                                         "core_attn"};
  const ParallelConfig before = c.parallel;
  EXPECT_TRUE(before.overlap_p2p_communication);
  EXPECT_FALSE(before.tp_comm_overlap);
  options.parse(args);
  const auto expect_all = [](const ParallelConfig& p) {
    EXPECT_EQ(p.num_layers_per_virtual_pipeline_stage, 2);
    EXPECT_EQ(p.microbatch_group_size_per_virtual_pipeline_stage, 8);
    EXPECT_EQ(p.decoder_first_pipeline_num_layers, 3);
    EXPECT_EQ(p.decoder_last_pipeline_num_layers, 4);
    EXPECT_TRUE(p.account_for_embedding_in_pipeline_split);
    EXPECT_TRUE(p.account_for_loss_in_pipeline_split);
    EXPECT_EQ(p.pipeline_model_parallel_layout, "Et*3|(tt|)*29,L");
    EXPECT_FALSE(p.overlap_p2p_communication);
    EXPECT_TRUE(p.tp_comm_overlap);
    EXPECT_EQ(p.recompute_granularity, ParallelConfig::RecomputeGranularity::kFull);
    EXPECT_EQ(p.recompute_method, ParallelConfig::RecomputeMethod::kBlock);
    EXPECT_EQ(p.recompute_num_layers, 5);
    EXPECT_EQ(p.recompute_modules, (std::vector<std::string>{"mlp", "core_attn"}));
  };
  expect_all(c.parallel);
  // Through TOML and back.
  const TomlFile file(options.to_toml());
  TrainConfig again;
  OptionSet from_file("weft train", "trains");
  add_train_options(from_file, again);
  from_file.parse(std::vector<std::string>{"--config", file.path()});
  expect_all(again.parallel);
  EXPECT_EQ(from_file.to_toml(), options.to_toml());

  const Outcome shorthand = parse({"--recompute-activations"});
  EXPECT_TRUE(shorthand.problems.empty()) << shorthand.all();
  EXPECT_EQ(shorthand.config.parallel.recompute_granularity,
            ParallelConfig::RecomputeGranularity::kSelective);
  expect_one_problem(parse({"--recompute-granularity", "ful"}),
                     {"--recompute-granularity ful", "did you mean full?"});
  expect_one_problem(parse({"--recompute-method", "blok"}),
                     {"--recompute-method blok", "did you mean block?"});
}

TEST(Options, SameValueTwiceIsFine) {
  EXPECT_TRUE(parse({"--seed", "7", "--seed", "7", "--bf16", "--bf16=true"}).problems.empty());
}

TEST(Options, NegativeNumbersAndEqualsSigns) {
  const Outcome outcome =
      parse({"--rampup-batch-size", "2", "2", "8", "--global-batch-size=4", "--train-samples", "9"});
  EXPECT_EQ(outcome.problems.size(), 1u)
      << outcome.all();  // iters and samples; words of other options stay apart
}

TEST(Options, AllProblemsAtOnce) {
  const Outcome outcome = parse({"--tensor-paralel", "2", "--min-lr", "x", "--fp16", "--bf16"});
  EXPECT_EQ(outcome.problems.size(), 3u) << outcome.all();
}

TEST(Options, EachBadTomlIsNamedWithItsLine) {
  const struct {
    const char* text;
    std::vector<const char*> parts;
  } cases[] = {
      {"seed = 1\nlearning_rat = 1\n", {"run.toml:2", "learning_rat = 1", "did you mean lr?"}},
      {"seed = 1\n\nmin_lr = \"abc\"\n", {"run.toml:3", "min_lr = \"abc\"", "a number"}},
      {"eval_iters = 2.5\n", {"run.toml:1", "eval_iters = 2.5", "an integer"}},
      {"eval_iters = 2.0\n", {"run.toml:1", "eval_iters = 2.0", "an integer"}},
      {"bf16 = 1\n", {"run.toml:1", "bf16 = 1", "true or false"}},
      {"bf16 = \"true\"\n", {"run.toml:1", "true or false"}},
      {"save = 3\n", {"run.toml:1", "save = 3", "text"}},
      {"optimizer = \"adma\"\n", {"run.toml:1", "adma", "did you mean adam?"}},
      {"micro_batch_size = -1\n", {"run.toml:1", "micro_batch_size = -1", "from 1"}},
      {"global_batch_size = 1099511627776\n", {"run.toml:1", "1099511627776"}},
      {"min-lr = 0.1\n", {"run.toml:1", "min-lr", "did you mean min_lr?"}},
      {"[model]\nmin_lr = 0.1\n", {"run.toml:2", "min_lr = 0.1", "[optimizer]", "[model]"}},
      {"[modle]\nnum_layers = 2\n", {"run.toml:1", "[modle]", "did you mean model?"}},
      {"min_lr = 0.1\n[optimizer]\nmin_lr = 0.2\n", {"run.toml:1", "run.toml:3", "twice", "0.1", "0.2"}},
      {"a = 1\n", {"run.toml:1", "a = 1"}},
      {"rampup_batch_size = [1, 2]\n", {"run.toml:1", "3 values"}},
      {"min_lr = [0.1]\n", {"run.toml:1", "min_lr", "a value"}},
      {"min_lr = 1979-05-27\n", {"run.toml:1", "min_lr"}},
      {"config = \"other.toml\"\n", {"run.toml:1", "command line"}},
      {"\n\n\n\n\n\nlr: abc\nseed = 2\n", {"run.toml:7", "lr: abc"}},
      {"min_lr = 0.1\nmin_lr = 0.2\n", {"run.toml:2", "min_lr"}},
      {"", {"run.toml", "no option"}},
      {"# nothing\n", {"run.toml", "no option"}},
      {"{\"lr\": 1}\n", {"run.toml:1"}},
  };
  for (const auto& bad : cases) {
    const TomlFile file(bad.text);
    const Outcome outcome = parse({"--config", file.path()});
    EXPECT_EQ(outcome.problems.size(), 1u) << bad.text << outcome.all();
    for (const char* part : bad.parts) {
      EXPECT_NE(outcome.all().find(part), std::string::npos) << part << "\nin " << outcome.all();
    }
    EXPECT_TRUE(file.alone());
  }
  const TomlFile file("learning_rat = 1\nseed = \"x\"\n[log]\nmin_lr = 1\n");
  EXPECT_EQ(parse({"--config", file.path(), "--eval-itres", "3"}).problems.size(), 4u);
}

TEST(Options, TomlWithAndWithoutTablesAndTheCommandLineWins) {
  const TomlFile file(
      "seed = 5\nno_calculate_per_token_loss = true\n[optimizer]\nmin_lr = 0.25\nadam_beta1 = 0\n"
      "[model]\nswiglu = true\ndisable_bias_linear = true\n");
  const Outcome outcome = parse({"--seed", "6", "--config", file.path()});
  ASSERT_TRUE(outcome.problems.empty()) << outcome.all();
  EXPECT_EQ(outcome.config.training.seed, 6);
  EXPECT_EQ(outcome.config.optimizer.min_lr, 0.25);
  EXPECT_EQ(outcome.config.optimizer.adam_beta1, 0);
  EXPECT_TRUE(outcome.config.model.gated);
  EXPECT_FALSE(outcome.config.model.add_bias_linear);
  EXPECT_FALSE(outcome.config.training.calculate_per_token_loss);
}

TEST(Options, PresetIsUnderEverythingElse) {
  const TomlFile file("preset = \"demo\"\nnum_layers = 3\n");
  const Outcome outcome = parse({"--config", file.path(), "--data-path", "d", "--hidden-size", "96"}, false);
  ASSERT_TRUE(outcome.problems.empty()) << outcome.all();
  EXPECT_EQ(outcome.config.model.num_layers, 3);
  EXPECT_EQ(outcome.config.model.hidden_size, 96);
  EXPECT_EQ(outcome.config.model.num_attention_heads, 6);
  const Outcome before = parse({"--hidden-size", "96", "--data-path", "d", "--preset", "demo"}, false);
  EXPECT_EQ(before.config.model.hidden_size, 96);
}

TEST(Options, EveryPresetMakesAModel) {
  ASSERT_FALSE(preset_names().empty());
  for (const std::string& name : preset_names()) {
    // A preset may leave the run's own lengths open, but holds nothing unknown, misread or contradictory.
    for (const std::string& problem : parse({"--preset", name}, false).problems) {
      EXPECT_TRUE(problem.find("must be given") != std::string::npos ||
                  problem.find(" needs --") != std::string::npos)
          << name << ": " << problem;
    }
    EXPECT_GT(parse({"--preset", name}, false).config.model.num_layers, 0) << name;
  }
}

TEST(Options, PrintedConfigLoadsToTheSame) {
  const std::vector<std::vector<std::string>> runs = {
      {},
      {"--swiglu", "--bf16", "--adam-eps", "1.2345678901234567e-9", "--rotary-base", "500000", "--ranks", "4",
       "--position-embedding-type", "rope", "--use-rope-scaling", "--save", "a \"b\"\\c\n\t\x01 \xc3\xa4",
       "--save-interval", "3", "--no-load-optim"},
      {"--split", "98,1,1", "--lr-decay-style", "WSD", "--lr-wsd-decay-iters", "4", "--optimizer", "sgd",
       "--squared-relu", "--seed", "9007199254740992", "--untie-embeddings-and-output-weights", "--no-bf16"},
  };
  for (const auto& args : runs) {
    const Outcome first = parse(args);
    ASSERT_TRUE(first.problems.empty()) << first.all();
    const TomlFile file(first.printed);
    const Outcome second = parse({"--config", file.path()}, false);
    EXPECT_TRUE(second.problems.empty()) << second.all() << first.printed;
    EXPECT_EQ(first.config, second.config) << first.printed;
    EXPECT_EQ(first.printed, second.printed);
  }
  EXPECT_NE(parse({}).printed.find("\nlr = 0.5\n"), std::string::npos);
}

TEST(Options, ListsInTomlTakeNumbersAndTexts) {
  const TomlFile file(
      "data_path = [0.25, \"a\", 3, \"b c\"]\nrampup_batch_size = [2, 2, 8]\nglobal_batch_size = 4\n"
      "train_samples = 100\nlr = 1e-3\nseq_length = 8\npreset = \"demo\"\n");
  const Outcome outcome = parse({"--config", file.path(), "--print-config"}, false);
  // The preset counts in iterations, which the file's train_samples contradicts.
  for (const std::string& problem : outcome.problems)
    EXPECT_EQ(problem.find("data_path"), std::string::npos) << problem;
  EXPECT_EQ(outcome.config.data.data_path, (std::vector<std::string>{"0.25", "a", "3", "b c"}));
  EXPECT_EQ(outcome.config.training.rampup_batch_size, (std::array<std::int64_t, 3>{2, 2, 8}));
}

TEST(Options, HelpShowsEveryOptionByTopicWithItsDefault) {
  TrainConfig config;
  OptionSet options("weft train", "trains");
  add_train_options(options, config);
  const std::vector<std::string> args = {"--help", "--nonsense"};
  EXPECT_EQ(options.parse(args), OptionSet::Request::kHelp);
  const std::string help = options.help();
  for (const char* part :
       {"\nmodel:\n", "\noptimizer:\n", "--adam-beta2 X", "[default: 0.999]", "--preset NAME",
        "[default: off]", "[default: on]", "gpipe|1f1b", "[default: 969,30,1]"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part;
  }
  std::size_t begin = 0;
  for (std::size_t end = help.find('\n'); end != std::string::npos;
       begin = end + 1, end = help.find('\n', begin)) {
    EXPECT_LE(end - begin, 125u) << help.substr(begin, end - begin);
  }
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> names = {
      "tensorboard-dir", "tensor-model-parallel-size", "lr", "min-lr", "load", "save"};
  EXPECT_EQ(nearest_name("tensor-paralel", names), "tensor-model-parallel-size");
  EXPECT_EQ(nearest_name("tensorbord-dir", names), "tensorboard-dir");
  EXPECT_EQ(nearest_name("minlr", names), "min-lr");
  EXPECT_EQ(nearest_name("laod", names), "load");
  EXPECT_EQ(nearest_name("something-else", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name("x", names), "");
  EXPECT_EQ(name_distance("lr", "lr"), 0);
}

}  // namespace
}  // namespace weft
