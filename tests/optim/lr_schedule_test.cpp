#include "optim/lr_schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "io/atomic_file.hpp"

namespace weft {
namespace {

using Json = nlohmann::json;

// Equal to within the golden files' 1e-12, or to rounding where the value itself is close to zero.
void expect_close(double actual, double expected, const std::string& where) {
  EXPECT_LE(std::abs(actual - expected), 1e-12 * std::abs(expected) + 1e-18) << where;
}

LrSchedule lr_schedule_of(const Json& args) {
  const std::map<std::string, LrSchedule::Style> styles = {
      {"constant", LrSchedule::Style::kConstant},
      {"linear", LrSchedule::Style::kLinear},
      {"cosine", LrSchedule::Style::kCosine},
      {"inverse-square-root", LrSchedule::Style::kInverseSquareRoot},
      {"WSD", LrSchedule::Style::kWsd}};
  const std::map<std::string, LrSchedule::WsdStyle> wsd_styles = {
      {"exponential", LrSchedule::WsdStyle::kExponential},
      {"linear", LrSchedule::WsdStyle::kLinear},
      {"cosine", LrSchedule::WsdStyle::kCosine},
      {"minus_sqrt", LrSchedule::WsdStyle::kMinusSqrt}};
  LrSchedule schedule = {.init_lr = args.at("init_lr"),
                         .max_lr = args.at("max_lr"),
                         .min_lr = args.at("min_lr"),
                         .warmup = args.at("lr_warmup_steps"),
                         .decay = args.at("lr_decay_steps"),
                         .style = styles.at(args.at("lr_decay_style"))};
  if (args.contains("wsd_decay_steps")) {
    schedule.wsd_decay = args.at("wsd_decay_steps");
    schedule.wsd_style = wsd_styles.at(args.at("lr_wsd_decay_style"));
  }
  return schedule;
}

WeightDecaySchedule weight_decay_schedule_of(const Json& args) {
  const std::map<std::string, WeightDecaySchedule::Style> styles = {
      {"constant", WeightDecaySchedule::Style::kConstant},
      {"linear", WeightDecaySchedule::Style::kLinear},
      {"cosine", WeightDecaySchedule::Style::kCosine}};
  return {.start = args.at("start_wd"),
          .end = args.at("end_wd"),
          .increment = args.at("wd_incr_steps"),
          .style = styles.at(args.at("wd_incr_style"))};
}

TEST(LrSchedule, Golden) {
  const Json cases = Json::parse(read_file(WEFT_SOURCE_DIR "/tests/golden/ops/lr_schedules/schedules.json"));
  ASSERT_EQ(cases.size(), 10u);
  for (const auto& [name, golden] : cases.items()) {
    const LrSchedule schedule = lr_schedule_of(golden.at("args"));
    LrSchedule group = schedule;  // the second parameter group of the golden runs
    group.max_lr /= 2;
    group.min_lr /= 4;
    const WeightDecaySchedule decay = weight_decay_schedule_of(golden.at("args"));
    ASSERT_GT(golden.at("rows").size(), 100u);
    for (const Json& row : golden.at("rows")) {
      const std::int64_t count = row[0];
      const std::string where = name + " at " + std::to_string(count);
      expect_close(schedule.lr(count), row[1], where);
      expect_close(decay.weight_decay(count), row[2], where);
      expect_close(group.lr(count), row[3], where);
    }
  }
}

TEST(LrSchedule, CosineWithoutWarmupFromTheMiddle) {
  const LrSchedule schedule = {
      .max_lr = 6e-4, .min_lr = 6e-5, .decay = 20, .style = LrSchedule::Style::kCosine};
  const std::pair<std::int64_t, double> expected[] = {
      {10, 3.3e-4}, {11, 2.8776269e-4}, {15, 1.3908117e-4}, {20, 6e-5}, {21, 6e-5}};
  for (const auto& [count, lr] : expected) EXPECT_NEAR(schedule.lr(count), lr, 1e-6 * lr) << count;
}

TEST(LrSchedule, LinearToZero) {
  const LrSchedule schedule = {.max_lr = 1e-3, .decay = 10, .style = LrSchedule::Style::kLinear};
  EXPECT_DOUBLE_EQ(schedule.lr(0), 1e-3);
  EXPECT_DOUBLE_EQ(schedule.lr(5), 5e-4);
  EXPECT_DOUBLE_EQ(schedule.lr(6), 4e-4);
  EXPECT_EQ(schedule.lr(10), 0);
  EXPECT_EQ(schedule.lr(1000), 0);
}

// Counting in samples is counting in steps with every length multiplied by the batch size.
TEST(LrSchedule, SamplesOrSteps) {
  for (const auto style : {LrSchedule::Style::kLinear, LrSchedule::Style::kCosine, LrSchedule::Style::kWsd}) {
    LrSchedule steps = {.init_lr = 1e-5,
                        .max_lr = 1e-3,
                        .min_lr = 1e-4,
                        .warmup = 7,
                        .decay = 50,
                        .style = style,
                        .wsd_decay = 11};
    LrSchedule samples = steps;
    samples.warmup *= 24;
    samples.decay *= 24;
    samples.wsd_decay *= 24;
    for (std::int64_t t = 0; t < 60; ++t) EXPECT_DOUBLE_EQ(steps.lr(t), samples.lr(24 * t)) << t;
  }
}

TEST(LrSchedule, Edges) {
  LrSchedule schedule = {.init_lr = 1e-5, .max_lr = 1e-3, .min_lr = 1e-4, .warmup = 10, .decay = 10};
  for (const auto style : {LrSchedule::Style::kLinear, LrSchedule::Style::kCosine, LrSchedule::Style::kWsd,
                           LrSchedule::Style::kInverseSquareRoot}) {
    schedule.style = style;
    schedule.warmup = 10;
    EXPECT_DOUBLE_EQ(schedule.lr(0), 1e-5);
    EXPECT_DOUBLE_EQ(schedule.lr(10), 1e-3);
    EXPECT_DOUBLE_EQ(schedule.lr(11), 1e-4);
    schedule.warmup = 0;
    EXPECT_DOUBLE_EQ(schedule.lr(0), 1e-3) << "no warm-up: the initial value plays no part";
  }
  schedule = {.max_lr = 1e-3, .min_lr = 1e-4, .style = LrSchedule::Style::kCosine};
  EXPECT_DOUBLE_EQ(schedule.lr(0), 1e-3) << "no length at all is no division by zero";
}

TEST(LrSchedule, InverseSquareRootStopsAtTheMinimum) {
  const LrSchedule schedule = {.max_lr = 1e-3,
                               .min_lr = 4e-4,
                               .warmup = 4,
                               .decay = 100,
                               .style = LrSchedule::Style::kInverseSquareRoot};
  EXPECT_DOUBLE_EQ(schedule.lr(16), 5e-4);
  EXPECT_DOUBLE_EQ(schedule.lr(25), 4e-4);
  EXPECT_DOUBLE_EQ(schedule.lr(64), 4e-4);
}

TEST(WeightDecaySchedule, Ramps) {
  WeightDecaySchedule schedule = {.start = 0.1, .end = 0.5, .increment = 10};
  EXPECT_EQ(schedule.weight_decay(0), 0.5);
  schedule.style = WeightDecaySchedule::Style::kCosine;
  EXPECT_DOUBLE_EQ(schedule.weight_decay(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.weight_decay(5), 0.3);
  EXPECT_DOUBLE_EQ(schedule.weight_decay(10), 0.5);
  EXPECT_DOUBLE_EQ(schedule.weight_decay(11), 0.5);
}

}  // namespace
}  // namespace weft
