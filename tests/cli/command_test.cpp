#include "cli/ran.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"

namespace weft {
namespace {

using test::Ran;
using test::weft;

namespace fs = std::filesystem;

// An empty folder of the running test.
class CommandLine : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              ("weft_cli_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  Ran weft_with_input(const std::vector<std::string>& args, const std::string& input) const {
    const std::string file = write("stdin", input);
    EXPECT_NE(std::freopen(file.c_str(), "rb", stdin), nullptr);
    return weft(args);
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}));
  }
  std::string tokenizer() const {
    const std::string text =
        write("corpus.txt", "the cat and the hat\nthe bat and the rat\n\nthat is the end\n");
    const Ran ran =
        weft({"tokenizer", "train", "--input", text, "--vocab-size", "270", "--out", path("tokenizer.json")});
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(ran.out, "");
    return path("tokenizer.json");
  }

  fs::path folder_;
};

void expect_all_lines_begin(const std::string& text, const std::string& begin) {
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    EXPECT_EQ(text.compare(at, begin.size(), begin), 0) << text;
  }
}

TEST_F(CommandLine, HelpAndVersion) {
  EXPECT_EQ(weft({"--help"}).status, 0);
  for (const char* name : {"tokenizer", "data", "doctor"}) {
    EXPECT_NE(weft({"--help"}).out.find(name), std::string::npos);
    EXPECT_EQ(weft({name, "--help"}).status, 0);
  }
  EXPECT_EQ(weft({"--version"}).out.rfind("weft ", 0), 0u);
  EXPECT_EQ(weft({"data", "sample", "--help"}).status, 0);
  EXPECT_EQ(weft({"data", "sample", "--nonsense", "-h"}).status, 0);
}

TEST_F(CommandLine, UnknownCommandsSuggestTheNearest) {
  const Ran ran = weft({"docter"});
  EXPECT_EQ(ran.status, 2);
  EXPECT_NE(ran.err.find("weft: unknown command 'docter'; did you mean doctor?"), std::string::npos)
      << ran.err;
  const Ran inner = weft({"data", "inspct"});
  EXPECT_EQ(inner.status, 2);
  EXPECT_NE(inner.err.find("weft data: unknown command 'inspct'; did you mean inspect?"), std::string::npos)
      << inner.err;
  EXPECT_EQ(weft({}).status, 2);
  expect_all_lines_begin(weft({}).err, "weft: ");
  expect_all_lines_begin(weft({"data", "inspect", "a\nb\tc"}).err, "weft data: ");
  EXPECT_EQ(weft({"data"}).status, 2);
}

TEST_F(CommandLine, EveryProblemIsALineOfItsOwn) {
  const Ran ran = weft({"data", "sample", "--seq-lenght", "8", "--seed", "-1", "--count", "x"});
  EXPECT_EQ(ran.status, 2);
  EXPECT_EQ(ran.out, "");
  expect_all_lines_begin(ran.err, "weft data: ");
  for (const char* part : {"--seq-lenght 8; did you mean --seq-length?", "--seed -1", "--count x",
                           "PREFIX must be given", "--index N must be given"}) {
    EXPECT_NE(ran.err.find(part), std::string::npos) << part << "\nin " << ran.err;
  }
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 5) << ran.err;
  EXPECT_EQ(files(), 0u);
}

TEST_F(CommandLine, AWrongTrainingRunTouchesNothing) {
  const std::string toml = write("run.toml", "seed = 1\nlr = \"abc\"\n");
  const std::vector<std::vector<std::string>> wrong = {
      {"--learning-rat", "1"},
      {"--num-layers", "2.5"},
      {"--seq-length", "1099511627776"},
      {"--config", toml},
      {"--config", path("none.toml")},
      {"--preset", "demo", "--data-path", path("none"), "--fp16", "--bf16"},
  };
  for (std::vector<std::string> args : wrong) {
    args.insert(args.begin(), "train");
    args.insert(args.end(), {"--save", path("save"), "--metrics", path("metrics.jsonl")});
    const Ran ran = weft(args);
    EXPECT_EQ(ran.status, 2) << ran.err;
    EXPECT_EQ(ran.out, "");
    expect_all_lines_begin(ran.err, "weft train: ");
    const std::string part = args[2] == toml     ? "run.toml:2: lr"
                             : args[2] == "demo" ? "--bf16 and --fp16"
                                                 : args[1];
    EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
    EXPECT_EQ(files(), 1u);  // run.toml
  }
}

TEST_F(CommandLine, AResultNeverReplacesItsInput) {
  const std::string text = write("corpus.txt", "the cat and the hat");
  const Ran ran = weft({"tokenizer", "train", "--input", text, "--vocab-size", "260", "--out", text});
  EXPECT_EQ(ran.status, 2);
  EXPECT_NE(ran.err.find("--out " + text + " is the input"), std::string::npos) << ran.err;
  EXPECT_EQ(read_file(text), "the cat and the hat");
}

TEST_F(CommandLine, ATimelineNeverReplacesTheTokenizer) {
  const std::string file = tokenizer(), before = read_file(file);
  for (const std::string& given : {file, path("")}) {
    const Ran ran = weft({"train",
                          "--text-file",
                          path("corpus.txt"),
                          "--tokenizer-model",
                          given,
                          "--lr",
                          "1e-3",
                          "--num-layers",
                          "1",
                          "--hidden-size",
                          "8",
                          "--num-attention-heads",
                          "2",
                          "--seq-length",
                          "4",
                          "--train-iters",
                          "3",
                          "--split",
                          "1",
                          "--device",
                          "cpu",
                          "--trace",
                          file});
    EXPECT_EQ(ran.status, 2);
    EXPECT_NE(ran.err.find("--trace " + file + " is the input"), std::string::npos) << ran.err;
  }
  EXPECT_EQ(read_file(file), before);
}

TEST_F(CommandLine, ATimelineOfSomeSteps) {
  const std::string tokens = path("tokens.safetensors"), trace = path("trace.json");
  std::vector<std::int32_t> ids(64, 1);
  write_safetensors(tokens, {{"input_ids", Tensor::borrow(ids.data(), DType::kI32, {4, 2, 8})},
                             {"labels", Tensor::borrow(ids.data(), DType::kI32, {4, 2, 8})}});
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"train", "--batches",
                                     tokens,  "--lr",
                                     "1e-3",  "--num-layers",
                                     "2",     "--hidden-size",
                                     "8",     "--num-attention-heads",
                                     "2",     "--vocab-size",
                                     "16",    "--ranks",
                                     "2",     "--device",
                                     "cpu"};
    args.insert(args.end(), more.begin(), more.end());
    return weft(args);
  };
  for (const auto& [option, value] : {std::pair{"--trace-start-step", "0"}, {"--trace-steps", "0"}}) {
    const Ran ran = train({"--trace", trace, option, value});
    EXPECT_EQ(ran.status, 2);
    EXPECT_NE(ran.err.find(std::string(option) + " 0"), std::string::npos) << ran.err;
  }
  const std::string nowhere = path("none/trace.json");
  const Ran missing = train({"--trace", nowhere});
  EXPECT_EQ(missing.status, 2);
  EXPECT_NE(missing.err.find("--trace " + nowhere), std::string::npos) << missing.err;
  EXPECT_EQ(files(), 1u);  // the tokens
  const Ran replaced = train({"--trace", tokens});
  EXPECT_EQ(replaced.status, 2);
  EXPECT_NE(replaced.err.find("--trace " + tokens + " is the input"), std::string::npos) << replaced.err;

  const Ran ran = train({"--trace", trace});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.err.find("wrote the timeline of 2 steps to " + trace), std::string::npos) << ran.err;
  const std::string text = read_file(trace);
  for (const char* part : {"\"traceEvents\":[", "rank 1 (tp 0, pp 0, dp 1)", "forward mb 0 chunk 0"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  EXPECT_NE(weft({"train", "--help"}).out.find("--trace FILE.json"), std::string::npos);
}

// Far more than any machine has: refused by the numbers, before anything is built or touched.
TEST_F(CommandLine, AModelBeyondTheMachinesMemoryIsRefused) {
  const std::string tokens = path("tokens.safetensors");
  std::vector<std::int32_t> ids(32, 1);
  write_safetensors(tokens, {{"input_ids", Tensor::borrow(ids.data(), DType::kI32, {2, 2, 8})}});
  for (const auto& [option, number] :
       {std::pair{"--vocab-size", "2000000000"}, {"--num-layers", "2000000000"}, {"--ranks", "1000000"}}) {
    std::vector<std::string> args = {"--batches", tokens, "--lr", "1", "--save", path("save")};
    for (const auto& [name, value] : {std::pair{"--num-layers", "1"},
                                      {"--hidden-size", "512"},
                                      {"--num-attention-heads", "2"},
                                      {"--vocab-size", "512"},
                                      {"--ranks", "1"}}) {
      args.insert(args.end(), {name, std::string(name) == option ? number : value});
    }
    for (const std::vector<std::string>& command :
         std::initializer_list<std::vector<std::string>>{{"train"}, {"bench", "step"}}) {
      std::vector<std::string> all = command;
      all.insert(all.end(), args.begin(), args.end());
      const Ran ran = weft(all);
      EXPECT_EQ(ran.status, 2) << ran.err;
      EXPECT_NE(ran.err.find("not enough memory: "), std::string::npos) << ran.err;
      EXPECT_EQ(files(), 1u);  // the tokens
    }
  }
}

// All ranks stop where standard input does, and what has been timed is told.
TEST_F(CommandLine, APacedBenchEndsWithItsInput) {
  const std::string tokens = path("tokens.safetensors");
  std::vector<std::int32_t> ids(32, 1);
  write_safetensors(tokens, {{"input_ids", Tensor::borrow(ids.data(), DType::kI32, {2, 2, 8})}});
  std::cin.clear();  // another test may have come to its end
  const Ran ran = weft_with_input({"bench",
                                   "step",
                                   "--batches",
                                   tokens,
                                   "--lr",
                                   "1",
                                   "--num-layers",
                                   "1",
                                   "--hidden-size",
                                   "8",
                                   "--num-attention-heads",
                                   "2",
                                   "--vocab-size",
                                   "16",
                                   "--ranks",
                                   "2",
                                   "--warmup",
                                   "1",
                                   "--steps-per-round",
                                   "1",
                                   "--rounds",
                                   "4",
                                   "--paced"},
                                  "\n\n");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.out.find("round=2 "), std::string::npos) << ran.out;
  EXPECT_EQ(ran.out.find("round=3 "), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("median_ms="), std::string::npos) << ran.out;
}

TEST_F(CommandLine, DoctorSaysWhatIsBuiltAndMissing) {
  const Ran ran = weft({"doctor"});
  EXPECT_EQ(ran.status, 0);
  for (const char* part :
       {"compiler", "instruction set", "cores", "memory", "gpus", "--device cuda", "mpi"}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(weft({"doctor", "now"}).status, 2);
}

TEST_F(CommandLine, TokenizerEncodesAndDecodesBytes) {
  const std::string file = tokenizer();
  const std::string text = "the  cat\tand\r\nthe \xff\xfe bat\n\n";
  const Ran encoded = weft_with_input({"tokenizer", "encode", "--tokenizer", file}, text);
  ASSERT_EQ(encoded.status, 0) << encoded.err;
  EXPECT_EQ(std::count(encoded.out.begin(), encoded.out.end(), '\n'), 1);
  const Ran decoded = weft_with_input({"tokenizer", "decode", "--tokenizer", file}, encoded.out);
  EXPECT_EQ(decoded.status, 0) << decoded.err;
  EXPECT_EQ(decoded.out, text);
}

TEST_F(CommandLine, TokenizerByLines) {
  const std::string file = tokenizer();
  const std::string text = "the cat\n\n and the hat\r\nno end";
  const Ran encoded = weft_with_input({"tokenizer", "encode", "--tokenizer", file, "--lines"}, text);
  ASSERT_EQ(encoded.status, 0) << encoded.err;
  EXPECT_EQ(std::count(encoded.out.begin(), encoded.out.end(), '\n'), 4) << encoded.out;
  const Ran first = weft_with_input({"tokenizer", "encode", "--tokenizer", file}, "the cat");
  EXPECT_EQ(encoded.out.substr(0, first.out.size()), first.out);
  const Ran decoded = weft_with_input({"tokenizer", "decode", "--tokenizer", file, "--lines"}, encoded.out);
  EXPECT_EQ(decoded.out, text + "\n");
}

TEST_F(CommandLine, TokenizerNamesWhatCannotBeDecoded) {
  const std::string file = tokenizer();
  const struct {
    const char* input;
    const char* part;
  } cases[] = {{"1 2x", "'2x' is not a token id"},
               {"99999999999", "'99999999999'"},
               {"1 100000", "100000"},
               {"-1", "-1"}};
  for (const auto& [input, part] : cases) {
    const Ran ran = weft_with_input({"tokenizer", "decode", "--tokenizer", file}, input);
    EXPECT_EQ(ran.status, 2) << input;
    EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
  }
  EXPECT_EQ(weft({"tokenizer", "encode", "--tokenizer", path("none.json")}).status, 2);
  EXPECT_EQ(weft({"tokenizer", "train", "--input", path("none.txt"), "--vocab-size", "300", "--out",
                  path("x.json")})
                .status,
            2);
  EXPECT_FALSE(fs::exists(path("x.json")));
}

TEST_F(CommandLine, DataBuildInspectSample) {
  const std::string file = tokenizer();
  const std::string text =
      write("docs.jsonl", "{\"text\": \"the cat and the hat\"}\n{\"text\": \"the bat\"}\n{\"text\": \"\"}\n");
  for (const char* workers : {"1", "3"}) {
    const Ran built = weft({"data", "build", "--input", text, "--tokenizer", file, "--out", path(workers),
                            "--append-eod", "--workers", workers});
    ASSERT_EQ(built.status, 0) << built.err;
    EXPECT_EQ(built.out, "");
  }
  EXPECT_EQ(read_file(path("1.bin")), read_file(path("3.bin")));
  EXPECT_EQ(read_file(path("1.idx")), read_file(path("3.idx")));
  const Ran inspected = weft({"data", "inspect", path("1"), "--ids"});
  ASSERT_EQ(inspected.status, 0) << inspected.err;
  for (const char* part :
       {"type=", "sequences=3\n", "documents=3\n", "empty_sequences=1\n", "highest_id=269\n"}) {
    EXPECT_NE(inspected.out.find(part), std::string::npos) << part << "\nin " << inspected.out;
  }
  const Ran sampled = weft({"data", "sample", path("1"), "--seq-length", "4", "--seed", "3", "--num-samples",
                            "9", "--index", "2", "--count", "3", "--labels"});
  ASSERT_EQ(sampled.status, 0) << sampled.err;
  EXPECT_EQ(std::count(sampled.out.begin(), sampled.out.end(), '\n'), 6) << sampled.out;
  const Ran beyond = weft({"data", "sample", path("1"), "--seq-length", "4", "--index", "1000"});
  EXPECT_EQ(beyond.status, 2);
  EXPECT_NE(beyond.err.find("--index 1000"), std::string::npos) << beyond.err;
  EXPECT_EQ(weft({"data", "inspect", path("nothing")}).status, 2);
}

// The samples that Megatron's own GPTDataset gives.
TEST_F(CommandLine, DataSampleGivesMegatronsOrder) {
  const std::string golden = std::string(WEFT_SOURCE_DIR) + "/tests/golden/data/";
  const Ran ran = weft({"data", "sample", golden + "u16", "--seq-length", "16", "--seed", "1234",
                        "--num-samples", "102", "--index", "0", "--count", "64"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const SafetensorsFile file(golden + "gpt_many_epochs.safetensors");
  const Tensor tokens = file.get("tokens");
  ASSERT_EQ(tokens.shape()[0], 64);
  std::string expected;
  for (std::int64_t row = 0; row < 64; ++row) {
    for (std::int64_t s = 0; s < 16; ++s) {
      expected += std::to_string(tokens.data<std::int64_t>()[row * 16 + s]) + (s == 15 ? "\n" : " ");
    }
  }
  EXPECT_EQ(ran.out, expected);
}

}  // namespace
}  // namespace weft
