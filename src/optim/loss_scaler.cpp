#include "optim/loss_scaler.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace weft {
namespace {

// A scale beyond this is infinite as a float, and half of infinity is no smaller.
constexpr double kLargestScale = 0x1p127;

}  // namespace

LossScaler::LossScaler(bool dynamic, const DynamicLossScale& options) : dynamic_(dynamic), options_(options) {
  state_.scale = options.initial;
  state_.hysteresis_left = options.hysteresis;
}

LossScaler LossScaler::constant(double scale) {
  return LossScaler(false, {.initial = scale, .minimum = scale});
}

LossScaler LossScaler::dynamic(const DynamicLossScale& options) {
  return LossScaler(true, options);
}

std::string LossScaler::update(bool overflow) {
  if (!overflow) {
    state_.floor_skips = 0;
    if (!dynamic_ || ++state_.clean < options_.window) return {};
    state_.clean = 0;
    state_.hysteresis_left = options_.hysteresis;
    state_.scale = std::min(2 * state_.scale, kLargestScale);
    return {};
  }
  std::string warning = count_floor_skip();
  if (dynamic_) {
    state_.clean = 0;
    state_.hysteresis_left = std::max<std::int64_t>(state_.hysteresis_left - 1, 0);
    if (state_.hysteresis_left == 0) state_.scale = std::max(state_.scale / 2, options_.minimum);
  }
  return warning;
}

std::string LossScaler::count_floor_skip() {
  if (dynamic_ && state_.scale > options_.minimum) return {};
  const std::int64_t skips = ++state_.floor_skips;
  std::int64_t next = kSkipsToWarn;
  while (next < skips) next *= 2;
  if (next != skips) return {};
  if (!dynamic_) {
    if (state_.scale == 1) {
      return fmt::format(
          "{} updates in a row were skipped: the loss or a gradient is not finite. Nothing is learned; lower "
          "--lr, or look at the data and the weights that the run started from",
          skips);
    }
    return fmt::format(
        "{} updates in a row were skipped: gradients overflow at the constant --loss-scale {}. Nothing is "
        "learned; lower "
        "it, or leave it out for a dynamic scale",
        skips, state_.scale);
  }
  return fmt::format(
      "{} updates in a row were skipped with the loss scale at its floor (--min-loss-scale {}): gradients "
      "are not finite "
      "whatever the scale. Nothing is learned; lower --lr, look at the data, or train with --bf16",
      skips, options_.minimum);
}

}  // namespace weft
