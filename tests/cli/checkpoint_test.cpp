// weft checkpoint inspect | verify
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint.hpp"
#include "cli/command.hpp"
#include "io/atomic_file.hpp"
#include "ops/elementwise.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Two tensors; every element is 1.
class Ones final : public WeightSource {
 public:
  std::string description() const override { return "ones"; }
  std::vector<std::string> names() const override { return {"a.bias", "a.weight"}; }
  bool contains(const std::string& name) const override { return name.starts_with("a."); }
  Shape shape(const std::string& name) const override { return name == "a.bias" ? Shape{4} : Shape{4, 3}; }
  void read(Lane& lane, const std::string&, int, std::int64_t, std::int64_t,
            const Tensor& out) const override {
    ops::fill(lane, out, 1);
  }
};

class CheckpointCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("weft_checkpoint_command_" + std::to_string(getpid()));
    const auto arena = Arena::host(1 << 16);
    Workers workers(1);
    Lane lane{*arena, workers, {}};
    write_weights(lane, Ones(), {.iteration = 7, .model = R"({"num_layers":2})"}, folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  int weft(const std::string& command, const fs::path& folder) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const std::vector<std::string> args = {"checkpoint", command, folder.string()};
    const int status = run_command_line(args);
    std::fflush(stdout);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return status;
  }

  fs::path folder_;
  std::string out_, err_;
};

TEST_F(CheckpointCommand, Inspect) {
  for (const fs::path& folder : {folder_, folder_ / "iter_0000007"}) {
    EXPECT_EQ(weft("inspect", folder), 0) << err_;
    for (const char* line :
         {"iteration=7\n", "optimizer_state=none\n", "model={\"num_layers\":2}\n", "parameters=16\n",
          "tensors=2\n", "weight a.bias F32 [4] pieces=1\n", "weight a.weight F32 [4, 3] pieces=1\n"}) {
      EXPECT_NE(out_.find(line), std::string::npos) << line << "\nin " << out_;
    }
  }
  EXPECT_EQ(weft("inspect", folder_ / "none"), 2);
  EXPECT_NE(err_.find("no such folder"), std::string::npos) << err_;
}

TEST_F(CheckpointCommand, Verify) {
  EXPECT_EQ(weft("verify", folder_), 0) << err_;
  EXPECT_NE(out_.find("sound: 1 files"), std::string::npos) << out_;
  const fs::path shard = folder_ / "iter_0000007" / "shard_00000.safetensors";
  std::string bytes = read_file(shard);
  bytes.back() ^= 1;
  write_file(shard, bytes);
  EXPECT_EQ(weft("verify", folder_), 2);
  EXPECT_EQ(out_, "");
  EXPECT_NE(err_.find(shard.string() + ": damaged"), std::string::npos) << err_;
}

}  // namespace
}  // namespace weft
