#include "train/progress.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace weft {
namespace {

// Columns that a terminal shows: code points.
int columns(const std::string& text) {
  int n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

StepMetrics step(std::int64_t iteration) {
  StepMetrics m;
  m.iteration = iteration;
  m.lm_loss = static_cast<double>(iteration);
  m.grad_norm = 1.5;
  m.lr = 1e-4;
  m.consumed_samples = 64 * iteration;
  m.step_ms = 100;
  m.tokens_per_second = 12345;
  m.tflops_per_device = 0.5;
  return m;
}

TEST(ProgressBar, FitsEveryWidth) {
  const ProgressState state{
      .iteration = 123, .total = 4000, .loss = 3.14159, .tokens_per_second = 98765, .seconds_left = 3725};
  for (const bool blocks : {false, true}) {
    for (int width = 0; width <= 80; ++width) {
      EXPECT_LE(columns(progress_bar(state, width, blocks)), width) << width;
    }
    EXPECT_EQ(columns(progress_bar(state, 80, blocks)), 80);
  }
  EXPECT_EQ(progress_bar(state, 80, false),
            " 123/4000 [>                       ]   3%  loss 3.1416  ETA 1:02:05  98.8k tok/s");
  EXPECT_EQ(progress_bar({.iteration = 50, .total = 100, .loss = 2}, 44, false),
            " 50/100 [========>       ]  50%  loss 2.0000");
}

TEST(ProgressBar, EndIsFull) {
  const std::string bar = progress_bar({.iteration = 9, .total = 9, .loss = 1}, 40, false);
  EXPECT_NE(bar.find("=] 100%"), std::string::npos) << bar;
  EXPECT_EQ(bar.find('>'), std::string::npos) << bar;
}

TEST(ProgressLines, OnePerIntervalWithMeans) {
  std::vector<std::string> lines;
  ProgressReporter reporter({.total = 25,
                             .log_interval = 10,
                             .mode = LogConfig::Progress::kLines,
                             .out = stderr,
                             .clock = {},
                             .line = [&](std::string_view text) { lines.emplace_back(text); }});
  for (int i = 1; i <= 25; ++i) {
    StepMetrics m = step(i);
    m.skipped = i == 3;
    reporter.step(m, 64);
  }
  reporter.finish();
  ASSERT_EQ(lines.size(), 3u);  // 10, 20 and the last
  // The mean loss leaves out the step that was skipped: (55 - 3) / 9.
  EXPECT_EQ(
      lines[0],
      "iteration       10/      25 | consumed samples:          640 | elapsed time per iteration (ms): 100.0 "
      "| "
      "throughput per device (TFLOP/s): 0.500 | learning rate: 1.000000E-04 | global batch size:    64 | "
      "lm loss: 5.777778E+00 | loss scale: 1.0 | grad norm: 1.500 | number of skipped iterations:   1 |");
  EXPECT_NE(lines[2].find("iteration       25/      25 |"), std::string::npos);
  EXPECT_NE(lines[2].find("lm loss: 2.300000E+01"), std::string::npos);
}

TEST(ProgressLines, StoppedEarlyShowsTheRest) {
  std::vector<std::string> lines;
  {
    ProgressReporter reporter({.total = 25,
                               .log_interval = 10,
                               .mode = LogConfig::Progress::kLines,
                               .out = stderr,
                               .clock = {},
                               .line = [&](std::string_view text) { lines.emplace_back(text); }});
    for (int i = 1; i <= 12; ++i) reporter.step(step(i), 64);
  }
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("iteration       12/"), std::string::npos);
}

TEST(ProgressLines, AutoWithoutATerminalIsLines) {
  std::FILE* file = std::tmpfile();
  EXPECT_FALSE(ProgressReporter({.total = 5, .out = file, .clock = {}, .line = {}}).bar());
  std::fclose(file);
}

TEST(ProgressLive, TenTimesASecondAtMostAndClean) {
  std::FILE* file = std::tmpfile();
  double now = 0;
  {
    ProgressReporter reporter({.total = 1000,
                               .log_interval = 10,
                               .mode = LogConfig::Progress::kBar,
                               .out = file,
                               .clock = [&] { return now; },
                               .line = [&](std::string_view) {}});
    for (int i = 1; i <= 1000; ++i, now += 0.01) reporter.step(step(i), 64);  // ten seconds
  }
  std::rewind(file);
  std::string text(1 << 20, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  int drawn = 0;
  for (const char c : text) drawn += c == '\r';
  EXPECT_LE(drawn, 103);
  EXPECT_GE(drawn, 90);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(text.find('\n'), text.size() - 1);  // one line, ended once
  EXPECT_NE(text.rfind("1000/1000"), std::string::npos);
}

}  // namespace
}  // namespace weft
