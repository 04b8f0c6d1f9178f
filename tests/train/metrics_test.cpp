#include "train/metrics.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "core/check.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

std::filesystem::path fresh(const std::string& name) {
  const auto path =
      std::filesystem::temp_directory_path() / ("weft_metrics_" + std::to_string(getpid()) + "_" + name);
  std::filesystem::remove_all(path);
  return path;
}

StepMetrics step(std::int64_t iteration) {
  StepMetrics m;
  m.iteration = iteration;
  m.lm_loss = 5.123456789123;
  m.grad_norm = 1.0 / 3;
  m.lr = 1e-4;
  m.tokens = 1024;
  m.consumed_samples = 8 * iteration;
  m.step_ms = 12.5;
  m.tokens_per_second = 81920;
  m.tflops_per_device = 0.25;
  return m;
}

std::vector<std::int64_t> iterations(const std::filesystem::path& path) {
  std::vector<std::int64_t> all;
  for (const StepMetrics& m : read_metrics(path)) all.push_back(m.iteration);
  return all;
}

TEST(Metrics, LineHasEveryFieldWithNineDigits) {
  EXPECT_EQ(
      to_json(step(3)),
      R"({"iteration": 3, "lm_loss": 5.12345679, "grad_norm": 0.333333333, "lr": 0.0001, "loss_scale": 1, )"
      R"("skipped": false, "tokens": 1024, "consumed_samples": 24, "step_ms": 12.5, "tokens_per_second": 81920, )"
      R"("tflops_per_device": 0.25, "mfu": null})");
}

TEST(Metrics, NineDigitsBringAFloatBack) {
  const auto path = fresh("float");
  StepMetrics m = step(1);
  float value = 4.6412859f;
  {
    MetricsWriter writer(path, 0);
    for (int i = 1; i <= 100; ++i, value = std::nextafter(value, 10.0f)) {
      m.iteration = i;
      m.lm_loss = value;
      writer.write(m);
    }
  }
  value = 4.6412859f;
  for (const StepMetrics& back : read_metrics(path)) {
    EXPECT_EQ(static_cast<float>(back.lm_loss), value);
    value = std::nextafter(value, 10.0f);
  }
}

TEST(Metrics, NanBecomesNullAndComesBack) {
  const auto path = fresh("nan");
  StepMetrics m = step(1);
  m.lm_loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  m.skipped = true;
  m.mfu = 0.5;
  m.validation_loss = 2.25;
  MetricsWriter(path, 0).write(m);
  const StepMetrics back = read_metrics(path).at(0);
  EXPECT_TRUE(std::isnan(back.lm_loss));
  EXPECT_TRUE(std::isnan(back.grad_norm));
  EXPECT_TRUE(back.skipped);
  EXPECT_EQ(back.mfu, 0.5);
  EXPECT_EQ(back.validation_loss, 2.25);
}

TEST(Metrics, ResumedRunHasOneLinePerStep) {
  const auto path = fresh("resume") / "run" / "metrics.jsonl";  // folders are made
  {
    MetricsWriter writer(path, 0);
    for (int i = 1; i <= 7; ++i) writer.write(step(i));
  }
  write_file(path, read_file(path) + R"({"iteration": 8, "lm_lo)");  // killed while writing
  EXPECT_EQ(iterations(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  {
    MetricsWriter writer(path, 5);
    for (int i = 6; i <= 9; ++i) writer.write(step(i));
  }
  EXPECT_EQ(iterations(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  MetricsWriter(path, 0).write(step(1));
  EXPECT_EQ(iterations(path), (std::vector<std::int64_t>{1}));
}

TEST(Metrics, LinesAreInTheFileAtOnce) {
  const auto path = fresh("flush");
  MetricsWriter writer(path, 0);
  writer.write(step(1));
  EXPECT_EQ(iterations(path).size(), 1u);
}

TEST(Metrics, AnotherFileIsNotOverwritten) {
  const auto path = fresh("other");
  for (const char* text : {"dear diary", "dear diary\nmore\n"}) {
    write_file(path, text);
    EXPECT_THROW(MetricsWriter(path, 0), ConfigError);
    EXPECT_EQ(read_file(path), text);
  }
}

TEST(Metrics, ErrorsNameThePath) {
  try {
    MetricsWriter(std::filesystem::temp_directory_path(), 0);
    FAIL() << "a folder was opened";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("Is a directory"), std::string::npos) << e.what();
  }
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here: a full device cannot be had";
  MetricsWriter writer("/dev/full", 0);
  try {
    writer.write(step(12));
    FAIL() << "a full device took a line";
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("/dev/full"), std::string::npos) << what;
    EXPECT_NE(what.find("iteration 12"), std::string::npos) << what;
    EXPECT_NE(what.find("No space left"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace weft
