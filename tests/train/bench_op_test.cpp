#include "train/bench_op.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/check.hpp"
#include "support/rank.hpp"
#include "train/op_cases.hpp"

namespace weft {
namespace {

TrainConfig tiny() {
  TrainConfig config;
  config.model.num_layers = 2;
  config.model.hidden_size = 32;
  config.model.num_attention_heads = 4;
  config.model.num_query_groups = 2;
  config.model.vocab_size = 100;
  config.data.seq_length = 16;
  config.training.micro_batch_size = 2;
  config.training.cpu_threads = 1;
  config.parallel.device = ParallelConfig::Device::kCpu;
  return config;
}

const OpTime& named(const BenchOpResult& result, const std::string& op, const std::string& shape = "") {
  for (const OpTime& t : result.times) {
    if (t.op == op && t.shape.starts_with(shape)) return t;
  }
  ADD_FAILURE() << op << " " << shape;
  return result.times.front();
}

TEST(BenchOp, EveryOperation) {
  for (const bool half : {false, true}) {
    TrainConfig config = tiny();
    config.training.bf16 = half;
    const BenchOpResult result = run_bench_op(config, {.rounds = 1});
    EXPECT_GT(result.ceilings.copy_rate, 0);
    EXPECT_GT(result.ceilings.product_rate, 0);
    const double bytes = half ? 2 : 4;
    for (const OpTime& t : result.times) {
      EXPECT_DOUBLE_EQ(t.floor_ms / 1e3,
                       std::max(t.bytes / result.ceilings.copy_rate, t.flops / result.ceilings.product_rate))
          << t.op;
      EXPECT_GT(t.ms, 0) << t.op;
      EXPECT_GT(t.floor_ms, 0) << t.op;
      EXPECT_EQ(t.costs.size(), 1u) << t.op;
    }
    // qkv: 4 heads and two groups of 8; 32 tokens.
    const OpTime& qkv = named(result, "gemm", "nt qkv 32x64x32");
    EXPECT_EQ(qkv.flops, 2.0 * 32 * 64 * 32);
    EXPECT_EQ(qkv.bytes, bytes * (32 * 32 + 64 * 32 + 32 * 64 + 64));
    EXPECT_EQ(named(result, "gemm", "tn head 128x32x32").bytes,
              bytes * (32 * 128 + 32 * 32) + 2 * 4 * 128 * 32);
    EXPECT_EQ(named(result, "attention").flops, 2 * 2.0 * 16 * 16 * 2 * 32 / 2);
    EXPECT_EQ(named(result, "attention_backward").flops, 2.5 * named(result, "attention").flops);
    EXPECT_EQ(named(result, "cross_entropy_fused").bytes, 2 * bytes * 32 * 128 + 4 * 32 + 2 * 4 * 32);
    config.model.max_position_embeddings = 16;
    const auto n = static_cast<double>(parameter_count(resolved(config.model)));
    EXPECT_EQ(named(result, "adamw").bytes, n * (7 * 4 + (half ? 2 : 0)));

    // What a plan needs to know, each share a finite number.
    const Rates rates = rates_of(result);
    EXPECT_EQ(rates.dtype, half ? DType::kBF16 : DType::kF32);
    for (const char* family : {"gemm nt", "gemm nn", "gemm tn", "attention/8", "attention_backward/8", "norm",
                               "norm_backward", "activation", "adamw", "sums_of_squares", "other"}) {
      EXPECT_TRUE(rates.efficiency.contains(family)) << family;
    }
    for (const auto& [family, share] : rates.efficiency) {
      EXPECT_TRUE(std::isfinite(share) && share > 0) << family << " " << share;
    }
    const std::string text = to_string(result);
    EXPECT_NE(text.find("gemm                     nt qkv 32x64x32"), std::string::npos) << text;
  }
}

// Every name that --op knows has a case, and every case a name.
TEST(BenchOp, Names) {
  std::set<std::string> unused;
  for (const std::string& name : op_names()) unused.insert(name);
  ModelConfig model = resolved(tiny().model);
  for (const OpCase& c : op_cases({.model = model, .sequence = 16, .batch = 2, .parameters = 10})) {
    bool known = false;
    for (const std::string& name : op_names()) {
      if (!op_matches(c.op, name)) continue;
      known = true;
      unused.erase(name);
    }
    EXPECT_TRUE(known) << c.op;
  }
  EXPECT_TRUE(unused.empty()) << *unused.begin();
}

TEST(BenchOp, OneOperationWithItsOwnSizes) {
  TrainConfig config;
  config.parallel.device = ParallelConfig::Device::kCpu;
  config.model.vocab_size = 1000;
  BenchOpResult result = run_bench_op(config, {.ops = {"cross_entropy"}, .rounds = 1, .tokens = 24});
  ASSERT_EQ(result.times.size(), 3u);
  for (const OpTime& t : result.times) EXPECT_EQ(t.shape, "24x1024");
  result =
      run_bench_op(config, {.ops = {"adamw", "attention"}, .rounds = 1, .tokens = 512, .parameters = 1e4});
  ASSERT_EQ(result.times.size(), 3u);
  EXPECT_EQ(named(result, "adamw").shape, "10000 parameters");
  EXPECT_EQ(named(result, "attention").shape.substr(0, 5), "256x2");
}

// A batch of one is taken for the default only where nobody said it.
TEST(BenchOp, ABatchOfOne) {
  TrainConfig config;
  config.parallel.device = ParallelConfig::Device::kCpu;
  const BenchOpOptions options{.ops = {"add_in_place"}, .rounds = 1, .batch_given = true};
  EXPECT_EQ(run_bench_op(config, options).times.front().shape, "256x256");
  EXPECT_EQ(run_bench_op(config, {.ops = {"add_in_place"}, .rounds = 1}).times.front().shape, "1024x256");
}

TEST(BenchOp, Problems) {
  const auto problems = [](TrainConfig config, const BenchOpOptions& options) {
    try {
      run_bench_op(std::move(config), options);
    } catch (const ConfigError& error) {
      return error.problems;
    }
    return std::vector<std::string>{};
  };
  TrainConfig config = tiny();
  config.model.num_attention_heads = 5;
  const std::vector<std::string> found = problems(config, {.ops = {"gem"}, .tokens = 33});
  std::string all;
  for (const std::string& problem : found) all += problem + "\n";
  EXPECT_NE(all.find("--op gem is none of gemm, bias_gradient"), std::string::npos) << all;
  EXPECT_NE(all.find("--tokens 33 is no multiple of --seq-length 16"), std::string::npos) << all;
  EXPECT_NE(all.find("num-attention-heads"), std::string::npos) << all;
  config = tiny();
  config.training.micro_batch_size = config.data.seq_length = (std::int64_t{1} << 31) - 1;
  const std::vector<std::string> tokens = problems(config, {.ops = {"attention"}});
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_NE(tokens.front().find("--micro-batch-size 2147483647 x --seq-length 2147483647"), std::string::npos)
      << tokens.front();
  const std::vector<std::string> large = problems(tiny(), {.ops = {"adamw"}, .parameters = 1e12});
  ASSERT_EQ(large.size(), 1u);
  EXPECT_NE(large.front().find("MiB are free on the machine"), std::string::npos) << large.front();
}

// The operands are numbers as training has them, and rows differ.
TEST(BenchOp, Operands) {
  testing::TestRank rank;
  const Tensor x = rank.lane().alloc(DType::kF32, {300, 1024}, "x");
  fill_normal(rank.lane(), x, 2);
  double sum = 0, squares = 0;
  for (const float v : x.values<float>()) sum += v, squares += double{v} * v;
  const auto n = static_cast<double>(x.elems());
  EXPECT_NEAR(sum / n, 0, 0.05);
  EXPECT_NEAR(squares / n, 4, 0.1);
  EXPECT_NE(x.values<float>()[0], x.values<float>()[64 * 1024]);
}

}  // namespace
}  // namespace weft
