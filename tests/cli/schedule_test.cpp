#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "cli/ran.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

using test::Ran;

Ran schedule(std::vector<std::string> args) {
  args.insert(args.begin(), "schedule");
  return test::weft(args);
}

void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(ScheduleCommand, ProgramsBubbleAndPeaks) {
  const Ran ran =
      schedule({"--schedule", "1f1b", "--pipeline", "2", "--virtual", "1", "--microbatches", "4"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  expect_in(ran.out, {"bubble=0.25\n", "rank=0 stages=0 busy=12 idle=3 peak_activations=2", "rank=1 stages=1",
                      "rank 1: 1RF0<0 1RF1<0 1F0 1B0 1W0 1SB0>0", "rank 0  F0 F1 .  .  B0 W0 F2"});
  expect_in(schedule({"--schedule", "zb-v", "--pipeline", "2", "--microbatches", "4"}).out,
            {"stages=4\n", "rank=0 stages=0,3", "rank=1 stages=1,2", "bubble=0.0416667\n"});
}

TEST(ScheduleCommand, Svg) {
  const std::string file = (std::filesystem::path(testing::TempDir()) /
                            ("weft_schedule_test_" + std::to_string(getpid()) + ".svg"))
                               .string();
  const Ran ran = schedule({"--schedule", "interleaved", "--pipeline", "2", "--virtual", "2",
                            "--microbatches", "4", "--svg", file});
  EXPECT_EQ(ran.status, 0) << ran.err;
  expect_in(read_file(file),
            {"<svg xmlns=", "interleaved: 2 ranks, 4 stages, 4 microbatches, bubble 12.5 %"});
  std::filesystem::remove(file);
}

TEST(ScheduleCommand, RefusedOrStuck) {
  const Ran refused =
      schedule({"--schedule", "interleaved", "--pipeline", "2", "--virtual", "2", "--microbatches", "3"});
  EXPECT_EQ(refused.status, 2);
  expect_in(refused.err, {"--microbatches 3 does not suit --schedule interleaved", "--pipeline 2"});
  const Ran stuck = schedule({"--pipeline", "2", "--microbatches", "4", "--channels", "single"});
  EXPECT_EQ(stuck.status, 1);
  expect_in(stuck.err, {"deadlock", "rank 0 stopped before 0B0", "rank 1 stopped before"});
}

}  // namespace
}  // namespace weft
