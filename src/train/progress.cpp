#include "train/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "core/check.hpp"
#include "core/log.hpp"

namespace weft {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr int kMaxColumns = 80;
constexpr double kStepTimeDecay = 0.95;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int columns(std::FILE* out) {
  winsize size{};
  const bool known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // The last column stays empty: some terminals wrap when it is written.
  return std::min(kMaxColumns, known ? size.ws_col - 1 : kMaxColumns);
}

bool unicode_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == 0) continue;
    const std::string_view v = value;
    return v.find("UTF-8") != v.npos || v.find("utf8") != v.npos || v.find("UTF8") != v.npos;
  }
  return false;
}

std::string duration(double seconds) {
  const auto s = static_cast<std::int64_t>(std::min(seconds, 1e9) + 0.5);
  if (s >= 86400) return fmt::format("{}d {:02}h", s / 86400, s / 3600 % 24);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

// Three digits, always as wide: the bar beside it must not tremble.
std::string rate(double x) {
  const double unit = x >= 1e6 ? 1e6 : x >= 1e3 ? 1e3 : 1;
  const double value = x / unit;
  return fmt::format("{:.{}f}{}", value,
                     value < 10    ? 2
                     : value < 100 ? 1
                                   : 0,
                     unit == 1e6   ? "M"
                     : unit == 1e3 ? "k"
                                   : "");
}

std::string filled(double fraction, int width, bool blocks) {
  std::string bar;
  if (!blocks) {
    const int full = static_cast<int>(fraction * (width - 2));
    for (int i = 0; i < width - 2; ++i) bar += i < full ? '=' : i == full ? '>' : ' ';
    return "[" + bar + "]";
  }
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(fraction * width * 8);
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  const int used = (eighths + 7) / 8;
  for (int i = used; i < width; ++i) bar += "░";
  return bar;
}

}  // namespace

std::string progress_bar(const ProgressState& state, int width, bool blocks) {
  const double fraction =
      state.total > 0
          ? std::clamp(static_cast<double>(state.iteration) / static_cast<double>(state.total), 0.0, 1.0)
          : 0;
  const std::string total = fmt::format("{}", state.total);
  const std::string head = fmt::format("{:>{}}/{}", state.iteration, total.size(), total);
  std::vector<std::string> parts = {fmt::format("  loss {:.4f}", state.loss)};
  if (state.seconds_left >= 0) parts.push_back("  ETA " + duration(state.seconds_left));
  if (state.tokens_per_second > 0) parts.push_back("  " + rate(state.tokens_per_second) + " tok/s");

  // All that fits, in order of importance; the bar takes what is left.
  constexpr int kShortestBar = 8;
  int left = width - static_cast<int>(head.size());
  if (left < 0) return head.substr(0, static_cast<std::size_t>(std::max(width, 0)));
  std::string tail;
  for (const std::string& part : parts) {
    if (static_cast<int>(part.size()) > left) break;
    tail += part;
    left -= static_cast<int>(part.size());
  }
  const std::string percent = fmt::format(" {:3.0f}%", std::floor(100 * fraction));
  const int bar = left - 1 - static_cast<int>(percent.size());
  if (bar < kShortestBar) return head + tail;
  return head + " " + filled(fraction, bar, blocks) + percent + tail;
}

void IntervalMetrics::add(const StepMetrics& step) {
  last = step;
  ++steps;
  if (step.skipped) {
    ++skipped;
  } else {
    loss_sum += step.lm_loss;
  }
  milliseconds += step.step_ms;
  tera_operations += step.tflops_per_device * step.step_ms / 1e3;
}

namespace {

// Over all layers: the emptiest expert, the mean, the fullest.
std::string experts_of_line(const ExpertMetrics& m) {
  double least = 0, most = 0, mean = 0;
  std::int64_t dead = 0;
  for (const LayerExperts& layer : m.layers) {
    least = &layer == &m.layers.front() ? layer.min : std::min(least, layer.min);
    most = std::max(most, layer.max);
    mean += layer.mean / static_cast<double>(m.layers.size());
    dead += layer.dead;
  }
  return fmt::format(
      " aux loss: {:.4f} | z loss: {:.4f} | tokens per expert (min/mean/max): {:.0f}/{:.0f}/{:.0f} | dead "
      "experts: {} | dropped: {:.2f} % |",
      m.aux_loss, m.z_loss, least, mean, most, dead, 100 * m.drop_rate);
}

}  // namespace

std::string interval_line(const IntervalMetrics& interval, std::int64_t total, std::int64_t global_batch) {
  const StepMetrics& last = interval.last;
  const std::int64_t updates = interval.steps - interval.skipped;
  std::string line = fmt::format(
      "iteration {:8}/{:8} | consumed samples: {:12} | elapsed time per iteration (ms): {:.1f} | "
      "throughput per device (TFLOP/s): {:.3f} | learning rate: {:.6E} | global batch size: {:5} |",
      last.iteration, total, last.consumed_samples,
      interval.milliseconds / static_cast<double>(std::max<std::int64_t>(interval.steps, 1)),
      interval.milliseconds > 0 ? interval.tera_operations / interval.milliseconds * 1e3 : 0.0, last.lr,
      global_batch);
  if (updates > 0)
    line += fmt::format(" lm loss: {:.6E} |", interval.loss_sum / static_cast<double>(updates));
  line += fmt::format(" loss scale: {:.1f} | grad norm: {:.3f} | number of skipped iterations: {:3} |",
                      last.loss_scale, last.grad_norm, interval.skipped);
  if (last.experts) line += experts_of_line(*last.experts);
  return line;
}

ProgressReporter::ProgressReporter(ProgressOptions options)
    : options_(std::move(options)),
      bar_(options_.mode == LogConfig::Progress::kBar ||
           (options_.mode == LogConfig::Progress::kAuto && ::isatty(::fileno(options_.out)) == 1)),
      blocks_(unicode_locale()) {
  if (!options_.clock) options_.clock = steady_seconds;
  if (!options_.line) options_.line = [](std::string_view text) { log_line(LogLevel::kInfo, text); };
  state_.total = options_.total;
}

ProgressReporter::~ProgressReporter() {
  try {
    finish();
  } catch (...) {  // a run that failed has said so
  }
}

void ProgressReporter::step(const StepMetrics& metrics, std::int64_t global_batch) {
  global_batch_ = global_batch;
  interval_.add(metrics);
  const bool last = metrics.iteration >= options_.total;
  if (!bar_) {
    if (last || metrics.iteration % std::max<std::int64_t>(options_.log_interval, 1) == 0) {
      options_.line(interval_line(interval_, options_.total, global_batch_));
      interval_ = {};
    }
    return;
  }
  // Time from step to step holds evaluation and saving too, so the time left does.
  const double now = options_.clock();
  const double seconds = last_step_ >= 0 ? now - last_step_ : metrics.step_ms / 1e3;
  last_step_ = now;
  seconds_per_step_ = kStepTimeDecay * seconds_per_step_ + (1 - kStepTimeDecay) * seconds;
  weight_ = kStepTimeDecay * weight_ + (1 - kStepTimeDecay);
  state_.iteration = metrics.iteration;
  state_.loss = metrics.lm_loss;
  state_.tokens_per_second = metrics.tokens_per_second;
  state_.seconds_left = static_cast<double>(std::max<std::int64_t>(options_.total - metrics.iteration, 0)) *
                        seconds_per_step_ / weight_;
  if (last || last_draw_ < 0 || now - last_draw_ >= kRedrawSeconds) {
    draw(false);
    last_draw_ = now;
  }
}

void ProgressReporter::validation(std::int64_t iteration, double loss) {
  print(fmt::format("validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} |",
                    iteration, loss, std::exp(std::min(loss, 20.0))));
}

void ProgressReporter::finish() {
  if (bar_) {
    if (drawn_) draw(true);
    drawn_ = false;
  } else if (interval_.steps > 0) {
    options_.line(interval_line(interval_, options_.total, global_batch_));
    interval_ = {};
  }
}

void ProgressReporter::draw(bool last) {
  // Back to the start, the line, clear what an older and longer one has left: one write, so that nothing
  // comes between.
  const std::string text =
      "\r" + progress_bar(state_, columns(options_.out), blocks_) + "\x1b[K" + (last ? "\n" : "");
  std::fwrite(text.data(), 1, text.size(), options_.out);
  std::fflush(options_.out);
  drawn_ = !last;
}

void ProgressReporter::print(std::string_view text) {
  if (bar_ && drawn_) {
    std::fputs("\r\x1b[K", options_.out);
    std::fflush(options_.out);
  }
  options_.line(text);
  if (bar_ && drawn_) draw(false);
}

}  // namespace weft
