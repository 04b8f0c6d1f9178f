#include "ops/cuda/plan_file.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace weft {
namespace {

using ops::cuda::PlanFile;

class PlanFiles : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path path() {
    std::filesystem::create_directories(folder_);
    return folder_ / "plans";
  }
  std::string text() {
    std::ifstream in(path());
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& text) { std::ofstream(path()) << text; }

  static constexpr PlanFile::Bits kOne = {1, 2, 3, 4, 5, 6, 7, ~std::uint64_t{0}}, kTwo = {9, 8};
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("weft_plan_file_{}", getpid());
};

TEST_F(PlanFiles, WhatWasPutIsReadAgain) {
  PlanFile file(path());
  EXPECT_EQ(file.find("a b; c"), nullptr);
  file.put("a b; c", kOne);
  ASSERT_NE(file.find("a b; c"), nullptr);
  file.save();
  const PlanFile again(path());
  ASSERT_NE(again.find("a b; c"), nullptr);
  EXPECT_EQ(*again.find("a b; c"), kOne);
  EXPECT_EQ(again.find("a b"), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);  // no temporary is left
}

TEST_F(PlanFiles, SavesOfSeveralRanksAreJoined) {
  PlanFile first(path()), second(path());
  first.put("first", kOne);
  second.put("second", kTwo);
  first.save();
  second.save();
  const PlanFile both(path());
  ASSERT_NE(both.find("first"), nullptr);
  ASSERT_NE(both.find("second"), nullptr);
  EXPECT_EQ(*both.find("first"), kOne);
  EXPECT_EQ(*both.find("second"), kTwo);
}

TEST_F(PlanFiles, NothingNewWritesNothing) {
  PlanFile(path()).save();
  EXPECT_FALSE(std::filesystem::exists(path()));
  PlanFile nowhere;
  nowhere.put("a", kOne);
  nowhere.save();
  EXPECT_EQ(nowhere.find("a"), nullptr);
}

// Any changed character, a cut, an empty file, another program's file: unused, and written anew.
TEST_F(PlanFiles, DamagedFilesAreNotTrusted) {
  {
    PlanFile file(path());
    file.put("key", kOne);
    file.put("other", kTwo);
    file.save();
  }
  const std::string whole = text();
  std::vector<std::string> damaged = {"", "\n", "another file\n" + whole, whole.substr(0, whole.size() - 3)};
  for (std::size_t i = 0; i < whole.size(); i += 17) {
    damaged.push_back(whole);
    damaged.back()[i] = damaged.back()[i] == 'f' ? 'e' : 'f';
  }
  for (const std::string& bad : damaged) {
    write(bad);
    PlanFile file(path());
    EXPECT_EQ(file.find("key"), nullptr) << bad;
    EXPECT_EQ(file.find("other"), nullptr) << bad;
    file.put("new", kTwo);
    file.save();
    EXPECT_NE(PlanFile(path()).find("new"), nullptr) << bad;
  }
}

TEST_F(PlanFiles, AFolderThatIsNotThereIsAWarning) {
  PlanFile file(folder_ / "missing" / "plans");
  file.put("key", kOne);
  EXPECT_NO_THROW(file.save());
}

}  // namespace
}  // namespace weft
