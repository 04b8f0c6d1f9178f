#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/ran.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"

namespace weft {
namespace {

using test::Ran;
using test::weft;

Ran plan(const std::vector<std::string>& more) {
  std::vector<std::string> args{"plan", "--num-layers", "4",  "--hidden-size", "64", "--num-attention-heads",
                                "4",    "--vocab-size", "96", "--seq-length",  "32"};
  args.insert(args.end(), more.begin(), more.end());
  return weft(args);
}

void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// No data, no learning rate, no number of steps.
TEST(PlanCommand, Tables) {
  const Ran ran = plan({"--pipeline-model-parallel-size", "2", "--ranks", "4", "--global-batch-size", "8"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  expect_in(ran.out, {"4 ranks: tp 1, pp 2, dp 2\n",
                      "stages: 0 [embedding, layers 0-1], 1 [layers 2-3, loss]; 4 layers\n",
                      "4 microbatches of each pipeline, 1f1b, bubble 25.00 %", "pipeline rank  parameters",
                      "sent by a rank in a step (MiB)", "embedding", "pp activations", "\nbubble=0.25\n"});
  EXPECT_EQ(ran.out.find("kv_replicas"), std::string::npos) << "a group that this layout has not";
  expect_in(plan({}).out, {"1 ranks: tp 1, pp 1, dp 1", "nothing: there is one rank"});
}

TEST(PlanCommand, Json) {
  const std::vector<std::string> layout{"--pipeline-model-parallel-size",
                                        "2",
                                        "--tensor-model-parallel-size",
                                        "2",
                                        "--ranks",
                                        "8",
                                        "--global-batch-size",
                                        "12",
                                        "--bf16",
                                        "--use-distributed-optimizer"};
  std::vector<std::string> to_output = layout, to_file = layout;
  const std::string file =
      (std::filesystem::path(testing::TempDir()) / ("weft_plan_test_" + std::to_string(getpid()) + ".json"))
          .string();
  to_output.insert(to_output.end(), {"--json", "-"});
  to_file.insert(to_file.end(), {"--json", file});
  const Ran ran = plan(to_output);
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(plan(to_file).status, 0);
  EXPECT_EQ(read_file(file), ran.out);
  std::filesystem::remove(file);

  const nlohmann::json all = nlohmann::json::parse(ran.out);
  EXPECT_EQ(all.at("ranks"), 8);
  EXPECT_EQ(all.at("microbatches"), 6);
  EXPECT_DOUBLE_EQ(all.at("bubble").get<double>(), 1.0 / 6);
  ASSERT_EQ(all.at("pipeline_ranks").size(), 2u);
  std::uint64_t memory = 0, sent = 0;
  for (const nlohmann::json& rank : all.at("pipeline_ranks")) {
    const auto bytes = [&](const char* name) { return rank.at(name).get<std::uint64_t>(); };
    EXPECT_GE(bytes("gradients"), 2 * bytes("weights"));
    EXPECT_EQ(bytes("optimizer"), bytes("weights") / 2 * 12 / 2);
    EXPECT_GT(bytes("peak"), bytes("weights") + bytes("gradients") + bytes("optimizer"));
    memory += 4 * bytes("peak");
    sent += 4 * bytes("total_bytes_sent");
  }
  // 6 microbatches of [32, 1, 64] in bf16, to the next stage and back.
  const nlohmann::json &first = all.at("pipeline_ranks")[0].at("bytes_sent"),
                       &last = all.at("pipeline_ranks")[1].at("bytes_sent");
  EXPECT_EQ(first.at("pp activations"), 6 * 32 * 64 * 2);
  EXPECT_EQ(first.at("pp gradients"), 0);
  EXPECT_EQ(last.at("pp activations"), 0);
  EXPECT_EQ(last.at("pp gradients"), 6 * 32 * 64 * 2);
  EXPECT_EQ(all.at("total_memory"), memory);
  EXPECT_EQ(all.at("total_bytes_sent"), sent);
  EXPECT_EQ(all.at("pipeline_ranks")[0].at("in_flight"), 2);
  EXPECT_EQ(all.at("pipeline_ranks")[1].at("in_flight"), 1);
  EXPECT_EQ(all.at("pipeline_ranks")[0].at("saved_activations").get<std::uint64_t>(),
            2 * all.at("pipeline_ranks")[0].at("activations_of_a_microbatch").get<std::uint64_t>());
}

// A cluster that nobody has at hand.
TEST(PlanCommand, SixteenThousandRanks) {
  const Ran ran = weft({"plan", "--preset", "llama3.1-405b", "--tensor-model-parallel-size", "8",
                        "--pipeline-model-parallel-size", "16", "--ranks", "16384",
                        "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
                        "--sequence-parallel", "--bf16", "--use-distributed-optimizer", "--json", "-"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const nlohmann::json all = nlohmann::json::parse(ran.out);
  EXPECT_EQ(all.at("parameters"), 405853388800);
  EXPECT_EQ(all.at("microbatches"), 16);
  const nlohmann::json& rank = all.at("pipeline_ranks")[1];
  const auto n = rank.at("parameters").get<double>();
  EXPECT_EQ(n, 8 * (2 * 16384 * 16384 * (1 + 1.0 / 16) + 3 * 16384 * 53248.0) / 8 + 8 * 2 * 16384);
  EXPECT_NEAR(rank.at("optimizer").get<double>(), 12 * n / 128, 0.001 * 12 * n / 128);
  // Ten gathers and scatters of [s, b, h] by each of 8 layers and 16 microbatches, (t - 1) / t of it each.
  const double row = 8192.0 * 16384 * 2 * 7 / 8;
  EXPECT_NEAR(rank.at("bytes_sent").at("tp").get<double>(), 10 * 8 * 16 * row, 0.001 * 10 * 8 * 16 * row);
}

TEST(PlanCommand, RefusesWhatTrainingRefuses) {
  const std::vector<std::vector<std::string>> wrong{
      {"--tensor-model-parallel-size", "3"},
      {"--pipeline-model-parallel-size", "3"},
      {"--pipeline-model-parallel-size", "2", "--pipeline-schedule", "interleaved"},
      {"--ranks", "5", "--tensor-model-parallel-size", "2"},
      {"--context-parallel-size", "2", "--cp-comm-type", "ring"},
      {"--group-query-attention"},
      {"--lr-decay-style", "WSD"},
      {"--recompute-granularity", "full"},
      {"--bf16", "--fp16"},
      {"--save-interval", "5"},
      {"--text-file", "a.txt"}};
  for (const std::vector<std::string>& options : wrong) {
    const Ran planned = plan(options);
    std::vector<std::string> run{
        "train", "--num-layers", "4",  "--hidden-size", "64", "--num-attention-heads", "4", "--vocab-size",
        "96",    "--seq-length", "32", "--lr",          "1",  "--train-iters",         "9"};
    if (options.front() != "--text-file") run.insert(run.end(), {"--data-path", "data"});
    run.insert(run.end(), options.begin(), options.end());
    const Ran trained = weft(run);
    EXPECT_EQ(planned.status, 2) << options.front();
    EXPECT_EQ(trained.status, 2) << options.front();
    std::string expected = trained.err;
    for (std::size_t at = 0; (at = expected.find("weft train: ", at)) != std::string::npos;) {
      expected.replace(at, 12, "weft plan: ");
    }
    EXPECT_EQ(planned.err, expected);
    EXPECT_EQ(planned.out, "");
  }
  const Ran nothing = weft({"plan"});
  EXPECT_EQ(nothing.status, 2);
  expect_in(nothing.err, {"--num-layers must be given", "--seq-length must be given"});
  EXPECT_EQ(nothing.err.find("--lr"), std::string::npos) << nothing.err;
  EXPECT_EQ(nothing.err.find("--train-iters"), std::string::npos) << nothing.err;
  EXPECT_EQ(nothing.err.find("no data"), std::string::npos) << nothing.err;
}

TEST(PlanCommand, RampedBatchesAndSamplesNeedNoRunEither) {
  EXPECT_EQ(plan({"--global-batch-size", "16", "--rampup-batch-size", "4", "4", "100"}).status, 0);
  EXPECT_EQ(plan({"--lr-decay-samples", "1000", "--lr-warmup-samples", "10"}).status, 0);
  EXPECT_EQ(plan({"--min-lr", "1e-5"}).status, 0);
}

// Given batches, and a tokenizer, say what a run would learn from them.
TEST(PlanCommand, FilesThatAreGiven) {
  const std::string file = (std::filesystem::path(testing::TempDir()) /
                            ("weft_plan_test_" + std::to_string(getpid()) + ".safetensors"))
                               .string();
  std::vector<std::int32_t> ids(3 * 8 * 16, 5);
  write_safetensors(file, {{"input_ids", Tensor::borrow(ids.data(), DType::kI32, Shape{3, 8, 16})}});
  const Ran ran = weft({"plan", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
                        "--vocab-size", "96", "--ranks", "2", "--batches", file, "--json", "-"});
  std::filesystem::remove(file);
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(ran.out).at("microbatches"), 4);
  const Ran missing = plan({"--batches", file});
  EXPECT_EQ(missing.status, 2);
  expect_in(missing.err, {file});
}

}  // namespace
}  // namespace weft
