// What a running training shows on stderr: one live line on a terminal, else a line per interval in
// Megatron's form.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "train/config.hpp"
#include "train/metrics.hpp"

namespace weft {

// What the bar shows.
struct ProgressState {
  std::int64_t iteration = 0, total = 0;
  double loss = 0;
  double tokens_per_second = 0;
  double seconds_left = -1;  // negative: not known yet
};

// One line of at most `width` columns; parts that do not fit are left out, the least important first.
// `blocks`: the terminal shows Unicode.
std::string progress_bar(const ProgressState& state, int width, bool blocks);

// The values of an interval of steps: means over its steps where a mean makes sense, else the last step's.
struct IntervalMetrics {
  StepMetrics last;
  std::int64_t steps = 0, skipped = 0;
  double loss_sum = 0;  // over the steps that were not skipped
  double milliseconds = 0;
  double tera_operations = 0;  // per device

  void add(const StepMetrics& step);
};
// "iteration      10/     400 | consumed samples: ... |"
std::string interval_line(const IntervalMetrics& interval, std::int64_t total, std::int64_t global_batch);

struct ProgressOptions {
  std::int64_t total = 0;  // iterations of the whole run
  std::int64_t log_interval = 100;
  LogConfig::Progress mode = LogConfig::Progress::kAuto;
  std::FILE* out = stderr;  // where the bar is drawn
  // For tests: seconds on a steady clock; where lines go. Empty: the real ones.
  std::function<double()> clock;
  std::function<void(std::string_view)> line;
};

// One per process, fed after every step. A bar is redrawn at most ten times a second. Log lines from
// elsewhere clear the bar themselves (core/log) and it comes back with the next step.
class ProgressReporter {
 public:
  explicit ProgressReporter(ProgressOptions options);
  ~ProgressReporter();
  ProgressReporter(const ProgressReporter&) = delete;
  ProgressReporter& operator=(const ProgressReporter&) = delete;

  // `metrics.validation_loss` is not looked at: see validation().
  void step(const StepMetrics& metrics, std::int64_t global_batch);
  void validation(std::int64_t iteration, double loss);
  // The last line of the run, whether or not it came to its end. Also called by the destructor.
  void finish();
  bool bar() const { return bar_; }

 private:
  void draw(bool last);
  void print(std::string_view text);

  ProgressOptions options_;
  bool bar_, blocks_;
  bool drawn_ = false;
  double last_draw_ = -1, last_step_ = -1;
  double seconds_per_step_ = 0, weight_ = 0;  // exponential mean and its normaliser
  ProgressState state_;
  IntervalMetrics interval_;
  std::int64_t global_batch_ = 0;
};

}  // namespace weft
