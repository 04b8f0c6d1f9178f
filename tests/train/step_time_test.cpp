// The time of a step that is only planned: the costs that it goes by are a run's, and it answers as it should
// when the model, the pipeline or the links change.
#include "train/step_time.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/check.hpp"
#include "support/rank.hpp"
#include "train/cost_recorder.hpp"
#include "train/options.hpp"
#include "train/plan.hpp"

namespace weft {
namespace {

constexpr std::int64_t kSequence = 32, kVocabulary = 96;

ModelConfig small(std::int64_t layers, bool llama = false) {
  ModelConfig c;
  c.num_layers = layers;
  c.hidden_size = 64;
  c.num_attention_heads = 4;
  c.vocab_size = kVocabulary;
  c.max_position_embeddings = kSequence;
  if (llama) {
    c.num_query_groups = 2;
    c.position_embedding = PositionEmbedding::kRope;
    c.normalization = Normalization::kRmsNorm;
    c.gated = true;
    c.activation = ops::Activation::kSilu;
    c.add_bias_linear = c.tied = false;
    c.hidden_dropout = c.attention_dropout = 0;
  }
  return resolved(c);
}

EngineOptions options_of(const ModelConfig& model, const ParallelConfig& parallel = {}) {
  EngineOptions options;
  options.model = model;
  options.micro_batch = 2;
  options.sequence_length = kSequence;
  options.layout = layout_of(parallel, options.model);
  options.bucket_elems = 20000;
  return options;
}

// A device on which every operation takes the time of its floor.
Rates ideal() {
  Rates r{.device = "ideal", .copy_rate = 1e9, .product_rate = 1e10, .source = "test"};
  r.node = r.network = {.bytes_per_second = 1e9, .latency = 1e-6};
  return r;
}

StepTime predicted(const EngineOptions& options, const Rates& rates, std::int64_t microbatches) {
  const std::vector<StepPlan> plans = plan_step(options, microbatches, false, 1, rates);
  std::vector<RankTime> ranks;
  for (const StepPlan& plan : plans) ranks.push_back(plan.time);
  return step_time(options, rates, ranks, microbatches);
}

std::vector<TracedOperation> operations_of_step(Engine& engine, CostRecorder& recorder) {
  const MicrobatchSource source = [](std::int64_t i, Batch& out) {
    out = Batch{};
    out.rows = 2;
    out.sequence_length = kSequence;
    for (const double v : testing::random_values(static_cast<std::uint64_t>(i), 2 * kSequence)) {
      out.tokens.push_back(static_cast<std::int32_t>((v + 1) / 2 * (kVocabulary - 1)));
    }
    out.labels = out.tokens;
    out.sample_ids = {2 * i, 2 * i + 1};
    out.target_tokens = 2 * kSequence;
  };
  recorder.trace(true);
  engine.train_step({.microbatches = 3, .source = source, .lr = 1e-3});
  return recorder.traced();
}

class CostsOfPlan : public ::testing::TestWithParam<bool> {};

TEST_P(CostsOfPlan, AreThoseOfARun) {
  EngineOptions options = options_of(small(2, GetParam()));
  const Groups groups = Groups::planned(options.layout, 0);
  CostRecorder planned, ran;

  const std::unique_ptr<Arena> arena = Arena::meta();
  Workers workers(1);
  Lane meta{*arena, workers, {}, &planned};
  Engine of_plan(meta, groups, options);
  const std::vector<TracedOperation> expected = operations_of_step(of_plan, planned);

  testing::TestRank rank;
  Lane lane = rank.lane();
  lane.tools = &ran;
  Engine of_run(lane, groups, options);
  of_run.initialize();
  const std::vector<TracedOperation> measured = operations_of_step(of_run, ran);

  ASSERT_GT(expected.size(), 100u);
  ASSERT_EQ(measured.size(), expected.size());
  for (std::size_t i = 0; i < measured.size(); ++i) {
    EXPECT_EQ(measured[i].cost.name, expected[i].cost.name) << i;
    EXPECT_EQ(measured[i].cost.bytes, expected[i].cost.bytes) << i << ": " << measured[i].cost.name;
    EXPECT_EQ(measured[i].cost.flops, expected[i].cost.flops) << i << ": " << measured[i].cost.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CostsOfPlan, ::testing::Values(false, true));

// On an ideal device the matrix products alone are a step's 6 N of each token, and attention's.
TEST(StepTime, OfProductsAlone) {
  Rates rates = ideal();
  rates.copy_rate = 1e30;
  const ModelConfig model = small(3);
  const StepTime time = predicted(options_of(model), rates, 4);
  const double tokens = 4.0 * 2 * kSequence;
  // Attention is causal, and its backward pass makes the scores again: (2 + 5) / 2 products, not 6.
  const double attention = 12.0 * 3 * 64 * kSequence;
  const double padded = 6.0 * (128 - kVocabulary) * 64;
  const double flops =
      tokens * (flops_per_token(model, kSequence) - attention + attention * 3.5 / 6 + padded);
  EXPECT_NEAR(time.seconds, flops / rates.product_rate, 1e-3 * time.seconds);
  EXPECT_EQ(time.split.exposed, 0);
  EXPECT_EQ(time.split.bubble, 0);
  EXPECT_NEAR(time.tokens_per_second, tokens / time.seconds, 1e-6 * time.tokens_per_second);
  EXPECT_NEAR(time.flops_per_device * time.seconds, tokens * flops_per_token(model, kSequence),
              1e-6 * tokens * flops_per_token(model, kSequence));
  EXPECT_EQ(time.mfu, 0) << "no peak, no MFU";
  rates.peak = 2 * time.flops_per_device;
  EXPECT_NEAR(predicted(options_of(model), rates, 4).mfu, 0.5, 1e-9);
}

TEST(StepTime, GrowsWithLayersAndMicrobatches) {
  const auto seconds = [&](std::int64_t layers, std::int64_t microbatches) {
    return predicted(options_of(small(layers)), ideal(), microbatches).seconds;
  };
  // Embeddings and output layer stay as they are.
  EXPECT_NEAR((seconds(17, 2) - seconds(1, 2)) / (seconds(9, 2) - seconds(1, 2)), 2, 0.01);
  EXPECT_NEAR(seconds(16, 2) / seconds(8, 2), 2, 0.1);
  // Every microbatch but the first adds the same.
  EXPECT_NEAR((seconds(2, 9) - seconds(2, 2)) / (seconds(2, 5) - seconds(2, 2)), 7.0 / 3, 1e-6);
}

TEST(StepTime, EfficiencyAndCallsLengthenIt) {
  const EngineOptions options = options_of(small(2));
  Rates rates = ideal();
  const double alone = predicted(options, rates, 2).seconds;
  rates.efficiency["other"] = 0.5;
  EXPECT_NEAR(predicted(options, rates, 2).seconds, 2 * alone, 1e-6 * alone);
  rates.efficiency["gemm nt"] = 1;
  const double products = predicted(options, rates, 2).seconds;
  EXPECT_LT(products, 2 * alone);
  EXPECT_GT(products, alone);
  rates = ideal();
  rates.per_operation = 1;
  EXPECT_GT(predicted(options, rates, 2).seconds, 100);
}

// Stages that take the same time: idle for P − 1 microbatches of M.
TEST(StepTime, BubbleOfAPipeline) {
  ParallelConfig parallel;
  parallel.ranks = parallel.pipeline_model_parallel_size = 4;
  const EngineOptions options = options_of(small(4), parallel);
  for (const std::int64_t microbatches : {4, 8, 100, 200}) {
    const auto m = static_cast<double>(microbatches);
    std::vector<RankTime> ranks(4);
    for (int pp = 0; pp < 4; ++pp) {
      auto& actions = ranks[static_cast<std::size_t>(pp)].actions;
      actions[{pp, ActionKind::kForward}].compute = m * 1;
      actions[{pp, ActionKind::kBackward}].compute = m * 2;
      ranks[static_cast<std::size_t>(pp)].outside.optimizer = 5;
    }
    const StepTime time = step_time(options, ideal(), ranks, microbatches);
    EXPECT_NEAR(time.split.bubble, 3 * 3, 1e-6) << microbatches;
    EXPECT_NEAR(time.split.bubble / time.split.compute, 3 / m, 1e-6) << microbatches;
    EXPECT_NEAR(time.seconds, 3 * (m + 3) + 5, 1e-6) << microbatches;
    EXPECT_EQ(time.message, 0);
  }
}

// The same, from the model: messages make it a little longer, and are waited for in the bubble.
TEST(StepTime, PipelineOfTheModel) {
  ParallelConfig parallel;
  parallel.ranks = parallel.pipeline_model_parallel_size = 2;
  const EngineOptions options = options_of(small(16), parallel);
  const StepTime time = predicted(options, ideal(), 8);
  EXPECT_NEAR(time.split.bubble / time.split.compute, 1.0 / 8, 0.05);
  EXPECT_NEAR(time.message, 1e-6 + 2 * kSequence * 64 * 4 / 1e9, 1e-9);
  Rates slow = ideal();
  slow.node.latency = 1e-3;
  const StepTime slower = predicted(options, slow, 8);
  EXPECT_GT(slower.split.bubble, time.split.bubble);
  EXPECT_EQ(slower.split.compute, time.split.compute);
}

class SlowerLink : public ::testing::TestWithParam<ParallelConfig> {};

TEST_P(SlowerLink, LengthensExposedCommunicationAlone) {
  EngineOptions options = options_of(small(4), GetParam());
  options.distributed_optimizer = GetParam().use_distributed_optimizer;
  options.sequence_parallel = GetParam().sequence_parallel;
  Rates rates = ideal();
  StepTime before = predicted(options, rates, 2);
  EXPECT_GT(before.split.exposed, 0);
  for (int i = 0; i < 3; ++i) {
    rates.node.bytes_per_second /= 3;
    const StepTime slower = predicted(options, rates, 2);
    EXPECT_DOUBLE_EQ(slower.split.compute, before.split.compute);
    EXPECT_DOUBLE_EQ(slower.split.optimizer, before.split.optimizer);
    EXPECT_GT(slower.split.exposed, 2 * before.split.exposed);
    EXPECT_NEAR(slower.seconds - before.seconds, slower.split.exposed - before.split.exposed, 1e-9);
    before = slower;
  }
}

ParallelConfig two_ranks(bool tp, bool more) {
  ParallelConfig parallel;
  parallel.ranks = 2;
  if (tp) parallel.tensor_model_parallel_size = 2;
  (tp ? parallel.sequence_parallel : parallel.use_distributed_optimizer) = more;
  return parallel;
}
INSTANTIATE_TEST_SUITE_P(Groups, SlowerLink,
                         ::testing::Values(two_ranks(false, false), two_ranks(false, true),
                                           two_ranks(true, false), two_ranks(true, true)));

// What the program starts early is hidden as far as its operations last.
TEST(StepTime, OverlapHidesMessages) {
  EngineOptions options = options_of(small(4), two_ranks(false, true));
  options.distributed_optimizer = true;
  Rates rates = ideal();
  rates.node.latency = 0;
  const StepTime off = predicted(options, rates, 2);
  options.overlap_grad_reduce = true;
  const StepTime reduce = predicted(options, rates, 2);
  EXPECT_LT(reduce.split.exposed, 0.8 * off.split.exposed);
  options.overlap_param_gather = true;
  const StepTime both = predicted(options, rates, 2);
  EXPECT_LT(both.split.exposed, 0.8 * reduce.split.exposed);
  EXPECT_DOUBLE_EQ(both.split.compute, off.split.compute);
  // With a link that takes nearly all the time, hiding cannot take more than the operations last.
  rates.node.bytes_per_second /= 1e4;
  const StepTime slow = predicted(options, rates, 2);
  EXPECT_GT(slow.split.exposed, 10 * slow.split.compute);
}

// The rule for messages, by hand: a byte a second, and operations of whole seconds.
TEST(StepTime, ClockOfARank) {
  Rates rates{.copy_rate = 1, .product_rate = 1};
  rates.node = {.bytes_per_second = 1, .latency = 1};
  ParallelConfig parallel = two_ranks(true, false);
  parallel.ranks = 4;
  StepClock clock(rates, 16, options_of(small(2), parallel).layout, 0);
  const auto compute = [&](double seconds) {
    clock.begin_traced({.cost = {.name = "x", .bytes = seconds}}, {});
  };
  clock.begin_step(2);
  const Action forward{.kind = ActionKind::kForward}, second{.kind = ActionKind::kForward, .microbatch = 1},
      send{.kind = ActionKind::kSendActivation};
  clock.begin_action(&forward);
  compute(1);
  const std::size_t a = clock.started("dp", 9);  // 1 to 11
  compute(4);                                    // 1 to 5
  const std::size_t b = clock.started("dp", 4),  // queued: 11 to 16
      c = clock.started("tp", 3);                // beside them: 5 to 9
  clock.waited(c);                               // 4 exposed
  compute(1);                                    // 9 to 10
  clock.waited(a);                               // 1 exposed
  clock.begin_action(&second);
  clock.waited(b);  // 5 exposed, to 16
  compute(2);       // to 18
  clock.begin_action(&send);
  clock.waited(clock.started("pp.activation.0-1", 100));  // the simulator's
  clock.begin_action(nullptr);
  clock.waited(clock.started("dp", 0));  // nothing is left of the queue: the latency
  clock.begin_traced({.cost = {.name = "adamw", .bytes = 7}}, {});

  const RankTime time = clock.of_step(2);
  const RankTime::Of& of = time.actions.at({0, ActionKind::kForward});
  EXPECT_DOUBLE_EQ(of.compute, 1 + 4 + 1 + 2);
  EXPECT_DOUBLE_EQ(of.exposed, 4 + 1 + 5);
  EXPECT_DOUBLE_EQ(time.outside.exposed, 1);
  EXPECT_DOUBLE_EQ(time.outside.compute, 0);
  EXPECT_DOUBLE_EQ(time.outside.optimizer, 7);
  EXPECT_DOUBLE_EQ(time.largest_message, 100);
  // Ten microbatches: the first as it was, nine like the second.
  EXPECT_DOUBLE_EQ(clock.of_step(10).actions.at({0, ActionKind::kForward}).compute, 6 + 9 * 2);
  EXPECT_DOUBLE_EQ(clock.of_step(10).actions.at({0, ActionKind::kForward}).exposed, 5 + 9 * 5);
  clock.begin_step(2);
  EXPECT_TRUE(clock.of_step(2).actions.empty());
}

// Ranks of other machines are reached over the network.
TEST(StepTime, GroupsThatSpanMachines) {
  const EngineOptions options = options_of(small(2), two_ranks(false, false));
  Rates rates = ideal();
  rates.network = {.bytes_per_second = 1e6, .latency = 1e-6};
  const double same = predicted(options, rates, 1).split.exposed;
  rates.ranks_per_node = 1;
  EXPECT_GT(predicted(options, rates, 1).split.exposed, 100 * same);
}

// The figures that stand for an H200 against steps measured on one (bench/RESULTS.md), within a twentieth.
// The costs of operations are the same in a build without the GPU's; only scratch is not.
TEST(StepTime, OnAnH200) {
  const auto error = [](const char* preset, std::int64_t layers, std::int64_t sequence, std::int64_t batch,
                        double measured_ms) {
    TrainConfig config;
    OptionSet options("test", "");
    add_train_options(options, config);
    options.parse(std::vector<std::string>{"--preset", preset, "--bf16", "--num-layers",
                                           std::to_string(layers), "--seq-length", std::to_string(sequence)});
    EngineOptions engine = options_of(resolved(config.model));
    engine.fused = true;
    engine.dtype = DType::kBF16;
    engine.sequence_length = sequence;
    engine.micro_batch = batch;
    const StepTime time = predicted(engine, h200_rates(), 1);
    EXPECT_NEAR(time.mfu * 989.4e12, time.flops_per_device, 1);
    return 1e3 * time.seconds / measured_ms - 1;
  };
  EXPECT_NEAR(error("gpt2-124m", 12, 1024, 64, 111.6), 0, 0.05);
  EXPECT_NEAR(error("gpt2-1.5b", 48, 1024, 16, 313.7), 0, 0.05);
  EXPECT_NEAR(error("llama3-8b", 8, 4096, 2, 213.9), 0, 0.05);
  EXPECT_NEAR(error("llama3-8b", 8, 4096, 4, 400.8), 0, 0.05);
  EXPECT_NEAR(error("llama3-8b", 8, 8192, 1, 227.6), 0, 0.05);
}

TEST(Rates, Families) {
  EXPECT_EQ(family_of({.name = "gemm nt 512x64x64 add"}, 64), "gemm nt");
  EXPECT_EQ(family_of({.name = "attention_backward"}, 128), "attention_backward/128");
  EXPECT_EQ(family_of({.name = "norm"}, 64), "norm");
  const Rates r = h200_rates();
  EXPECT_NEAR(r.efficiency_of("attention/128") * r.product_rate, 580e12, 1e9);
  EXPECT_EQ(r.efficiency_of("attention/112"), r.efficiency_of("attention/128"));
  EXPECT_EQ(r.efficiency_of("attention/32"), r.efficiency_of("attention/64"));
  EXPECT_EQ(r.efficiency_of("no such"), r.efficiency_of("other"));
  EXPECT_NEAR(r.seconds({.name = "gemm nn 1x1x1", .flops = 670e9}, 64), 1e-3 + r.per_operation, 1e-9);
  EXPECT_EQ(peak_of("NVIDIA H200", DType::kBF16), 989.4e12);
  EXPECT_EQ(peak_of("NVIDIA H200", DType::kF32), 0);
}

class RatesFile : public ::testing::Test {
 protected:
  RatesFile()
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("weft_rates_test_" + std::to_string(getpid()) + ".json")) {
    std::filesystem::remove(path_);
  }
  ~RatesFile() override { std::filesystem::remove(path_); }

  void write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string problem(DeviceKind kind = DeviceKind::kCuda, DType dtype = DType::kBF16) const {
    try {
      read_rates(path_, kind, dtype);
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.problems.size(), 1u);
      EXPECT_NE(error.problems.front().find(path_.string()), std::string::npos) << error.problems.front();
      return error.problems.front();
    }
    return "none";
  }

  std::filesystem::path path_;
};

TEST_F(RatesFile, RoundTrip) {
  const Rates given = h200_rates();
  write_rates(path_, given);
  const Rates read = read_rates(path_, DeviceKind::kCuda, DType::kBF16);
  EXPECT_EQ(read.device, given.device);
  EXPECT_EQ(read.copy_rate, given.copy_rate);
  EXPECT_EQ(read.product_rate, given.product_rate);
  EXPECT_EQ(read.peak, given.peak);
  EXPECT_EQ(read.per_operation, given.per_operation);
  EXPECT_EQ(read.efficiency, given.efficiency);
  EXPECT_EQ(read.node.bytes_per_second, given.node.bytes_per_second);
  EXPECT_EQ(read.network.latency, given.network.latency);
  EXPECT_EQ(read.ranks_per_node, given.ranks_per_node);
  EXPECT_EQ(read.source, path_.string());

  // Another dtype stands beside it, and links that someone has put in stay.
  Rates other = given;
  other.dtype = DType::kF32;
  other.product_rate = 50e12;
  other.node.latency = 1;
  write_rates(path_, other);
  EXPECT_EQ(read_rates(path_, DeviceKind::kCuda, DType::kF32).product_rate, 50e12);
  EXPECT_EQ(read_rates(path_, DeviceKind::kCuda, DType::kF32).node.latency, given.node.latency);
  EXPECT_EQ(read_rates(path_, DeviceKind::kCuda, DType::kBF16).product_rate, given.product_rate);

  Rates another = given;
  another.device = "NVIDIA A100";
  EXPECT_THROW(write_rates(path_, another), ConfigError);
}

TEST_F(RatesFile, WhatIsWrongWithIt) {
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  problem();  // missing: names the file
  EXPECT_NE(problem(), "none");
  write("{ not json");
  has(problem(), "is not JSON");
  write("{}");
  has(problem(), "weft rates 1");
  write("[1]");
  has(problem(), "weft rates 1");
  std::filesystem::remove(path_);
  write_rates(path_, h200_rates());
  has(problem(DeviceKind::kCpu), "the plan is for --device cpu");
  has(problem(DeviceKind::kCuda, DType::kF32), "has no rates of f32");
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::filesystem::remove(path_);
    write_rates(path_, h200_rates());
    std::ifstream in(path_);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write(text.replace(at, from.size(), to));
  };
  broken("\"copy_bytes_per_second\": ", "\"copy_bytes_per_second\": -");
  has(problem(), "\"copy_bytes_per_second\" is -");
  broken("\"copy_bytes_per_second\"", "\"copy\"");
  has(problem(), "\"copy_bytes_per_second\" is missing");
  broken("\"links\"", "\"lines\"");
  has(problem(), "\"links\" is missing");
  broken("\"norm\": 0", "\"norm\": 0.0, \"x\": 0");
  has(problem(), "\"norm\" is 0");
  // What is counted: ranks are divided by the first of these.
  for (const char* wrong : {"0.5, \"x\": ", "0, \"x\": ", "1e300, \"x\": "}) {
    broken("\"ranks_per_node\": ", "\"ranks_per_node\": " + std::string(wrong));
    has(problem(), "must be a whole number from 1 to");
  }
  broken("\"threads\": ", "\"threads\": 1e300, \"x\": ");
  has(problem(), "\"threads\" is 1e+300, and must be a whole number");
}

// What keeps rates from being written is known before they are measured.
TEST_F(RatesFile, WhereTheyAreWritten) {
  const auto refused = [&](const std::string& file, const std::string& part) {
    try {
      rates_target(file, "NVIDIA H200");
      ADD_FAILURE() << file;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  EXPECT_EQ(rates_target(path_, "NVIDIA H200"), path_);
  write_rates(path_, h200_rates());
  EXPECT_EQ(rates_target(path_, "NVIDIA H200"), path_);
  write("of someone else");
  refused(path_, "is not JSON");
  write(R"({"format": "weft rates 1", "device": "NVIDIA A100", "rates": {}})");
  refused(path_, "it holds the rates of NVIDIA A100, and these are of NVIDIA H200");
  write(R"({"format": "weft rates 1", "device": 5, "rates": {}})");
  refused(path_, "\"device\" is missing or not of its type");
  write(R"({"format": "weft rates 1", "device": "NVIDIA H200", "rates": []})");
  refused(path_, "\"rates\" is missing or no object");
  EXPECT_THROW(write_rates(path_, h200_rates()), ConfigError);
  refused("/dev/null", "--save-rates /dev/null");
  refused(::testing::TempDir(), "--save-rates");
  refused(path_ / "x.json", "--save-rates");
}

}  // namespace
}  // namespace weft
