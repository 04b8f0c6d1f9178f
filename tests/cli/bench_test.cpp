#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/ran.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

using test::Ran;
using test::weft;

std::vector<std::string> with_model(std::vector<std::string> args,
                                    const std::vector<std::string>& more = {}) {
  args.insert(args.end(),
              {"--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--vocab-size", "96",
               "--seq-length", "16", "--device", "cpu", "--cpu-threads", "1"});
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// A cache folder of this test's own.
class BenchOpCommand : public ::testing::Test {
 protected:
  BenchOpCommand()
      : cache_(std::filesystem::path(::testing::TempDir()) /
               ("weft_bench_test_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(cache_);
    std::filesystem::create_directories(cache_);
    setenv("XDG_CACHE_HOME", cache_.c_str(), 1);
  }
  ~BenchOpCommand() override {
    unsetenv("XDG_CACHE_HOME");
    std::filesystem::remove_all(cache_);
  }
  std::filesystem::path cache_;
};

TEST_F(BenchOpCommand, Table) {
  const Ran ran = weft(with_model({"bench", "op", "--rounds", "1", "--op", "norms", "cross_entropy"}));
  EXPECT_EQ(ran.status, 2);
  expect_in(ran.err, {"--op norms is none of gemm"});
  const Ran two = weft(with_model({"bench", "op", "--rounds", "1", "--op", "layer_norm", "cross_entropy"}));
  EXPECT_EQ(two.status, 0) << two.err;
  expect_in(two.out,
            {"copies", "products", "layer_norm_backward", "cross_entropy_fused      16x128", "GB/s"});
  EXPECT_EQ(two.out.find("gemm"), std::string::npos) << two.out;
}

TEST_F(BenchOpCommand, BadOptions) {
  const Ran ran = weft({"bench", "op", "--rounds", "0", "--dtype", "fp8", "--save-rates", "--op", "gemm"});
  EXPECT_EQ(ran.status, 2);
  expect_in(ran.err, {"--rounds", "--dtype", "--save-rates needs the times of all operations"});
  EXPECT_EQ(weft({"bench", "op", "--save-rates", "/no/such/folder/x.json"}).status, 2);
  EXPECT_EQ(weft({"bench", "ops"}).status, 2);
}

TEST_F(BenchOpCommand, WhatIsSaidIsMeasured) {
  // One precision, the one that --dtype names.
  expect_in(
      weft(with_model({"bench", "op", "--rounds", "1", "--op", "norm", "--fp16", "--dtype", "fp32"})).out,
      {" in F32"});
  expect_in(weft({"bench", "op", "--rounds", "1", "--op", "add_in_place", "--device", "cpu", "--cpu-threads",
                  "1", "--micro-batch-size", "1"})
                .out,
            {"add_in_place             256x256 "});
  for (const auto& [option, value] : {std::pair{"--params", "0.5"}, {"--tokens", "0"}}) {
    const Ran ran = weft(with_model({"bench", "op", "--rounds", "1", "--op", "adamw", option, value}));
    EXPECT_EQ(ran.status, 2);
    expect_in(ran.err, {std::string(option) + " " + value});
  }
}

// Nothing is measured that could not be saved.
TEST_F(BenchOpCommand, AFileThatIsNoneOfRatesStays) {
  const std::string file = (cache_ / "notes.txt").string();
  write_file(file, "notes");
  const Ran ran = weft(with_model({"bench", "op", "--rounds", "1", "--save-rates", file}));
  EXPECT_EQ(ran.status, 2);
  EXPECT_EQ(ran.out, "");
  expect_in(ran.err, {file + " is not JSON"});
  EXPECT_EQ(read_file(file), "notes");
  write_file(cache_ / "weft", "a file where the folder should be");
  const Ran nowhere = weft(with_model({"bench", "op", "--rounds", "1", "--save-rates"}));
  EXPECT_EQ(nowhere.status, 2);
  EXPECT_EQ(nowhere.out, "");
  expect_in(nowhere.err, {"--save-rates: the folder "});
}

// Saved where nothing is said, rates are what a plan on this machine goes by; in a file, what it is told to.
TEST_F(BenchOpCommand, SavedRatesAreReadByThePlan) {
  const std::vector<std::string> plan = with_model({"plan", "--json", "-", "--global-batch-size", "3"});
  const auto step_time = [](const Ran& ran) {
    EXPECT_EQ(ran.status, 0) << ran.err;
    return nlohmann::json::parse(ran.out).at("step_time");
  };
  EXPECT_TRUE(step_time(weft(plan)).is_null());
  expect_in(weft(with_model({"plan"})).out, {"weft bench op --save-rates"});

  const std::string file = (cache_ / "mine.json").string();
  const Ran saved = weft(with_model({"bench", "op", "--rounds", "1", "--save-rates", file}));
  EXPECT_EQ(saved.status, 0) << saved.err;
  expect_in(saved.out, {"rates=" + file});
  EXPECT_TRUE(step_time(weft(plan)).is_null());
  std::vector<std::string> told = plan;
  told.insert(told.end(), {"--rates", file});
  const nlohmann::json time = step_time(weft(told));
  EXPECT_GT(time.at("step_ms").get<double>(), 0);
  EXPECT_NEAR(time.at("compute_ms").get<double>() + time.at("exposed_communication_ms").get<double>() +
                  time.at("bubble_ms").get<double>() + time.at("optimizer_ms").get<double>(),
              time.at("step_ms").get<double>(), 1e-6);
  EXPECT_NEAR(time.at("tokens_per_second").get<double>() * time.at("step_ms").get<double>(), 3 * 16 * 1e3,
              1e-3);
  EXPECT_EQ(time.at("rates"), file);
  EXPECT_TRUE(time.at("mfu").is_null());
  expect_in(weft(with_model({"plan", "--rates", file})).out,
            {"time of a step: ", "ms predicted", "exposed communication", "\nstep_ms="});

  const Ran cached = weft(with_model({"bench", "op", "--rounds", "1", "--save-rates"}));
  EXPECT_EQ(cached.status, 0) << cached.err;
  expect_in(cached.out, {"rates=" + (cache_ / "weft" / "rates").string()});
  EXPECT_GT(step_time(weft(plan)).at("step_ms").get<double>(), 0);
  std::vector<std::string> half = plan;
  half.emplace_back("--bf16");
  EXPECT_TRUE(step_time(weft(half)).is_null()) << "nothing was measured in bf16";
}

// A file's name is bytes; JSON is UTF-8.
TEST_F(BenchOpCommand, AFileNamedInNoEncoding) {
  const std::string file = (cache_ / "r\xff.json").string();
  EXPECT_EQ(weft(with_model({"bench", "op", "--rounds", "1", "--save-rates", file})).status, 0);
  const Ran ran = weft(with_model({"plan", "--json", "-", "--rates", file}));
  EXPECT_EQ(ran.status, 0) << ran.err;
  expect_in(ran.out, {"r\uFFFD.json"});
}

TEST_F(BenchOpCommand, PlanSaysWhatIsWrongWithRates) {
  const std::string file = (cache_ / "x.json").string();
  EXPECT_EQ(weft(with_model({"plan", "--rates", file})).status, 2);
  write_file(file, "nonsense");
  const Ran ran = weft(with_model({"plan", "--rates", file}));
  EXPECT_EQ(ran.status, 2);
  expect_in(ran.err, {file + " is not JSON"});
}

}  // namespace
}  // namespace weft
