#include "optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft {
namespace {

// From 1 (ratio 0) to 0 (ratio 1) along half a cosine.
double half_cosine(double ratio) {
  return 0.5 * (std::cos(std::numbers::pi * ratio) + 1);
}

double ratio_of(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

// How much of max_lr − min_lr is left, in the last part of warm-up, stable, decay.
double wsd_coefficient(const LrSchedule& schedule, std::int64_t count) {
  const std::int64_t start = schedule.decay - schedule.wsd_decay;
  if (count <= start) return 1;
  const double ratio = ratio_of(count - start, schedule.wsd_decay);
  switch (schedule.wsd_style) {
    case LrSchedule::WsdStyle::kExponential:
      return 2 * std::pow(0.5, ratio) - 1;
    case LrSchedule::WsdStyle::kLinear:
      return 1 - ratio;
    case LrSchedule::WsdStyle::kCosine:
      return half_cosine(ratio);
    case LrSchedule::WsdStyle::kMinusSqrt:
      return 1 - std::sqrt(ratio);
  }
  return 1;
}

}  // namespace

double LrSchedule::lr(std::int64_t count) const {
  if (warmup > 0 && count <= warmup) {
    return init_lr + (max_lr - init_lr) * static_cast<double>(count) / static_cast<double>(warmup);
  }
  if (style == Style::kConstant) return max_lr;
  if (count > decay) return min_lr;
  if (style == Style::kInverseSquareRoot) {
    const auto peak = static_cast<double>(std::max<std::int64_t>(warmup, 1));
    const auto now = static_cast<double>(std::max<std::int64_t>(count, 1));
    return std::max(min_lr, max_lr * std::sqrt(peak) / std::sqrt(now));
  }
  double coefficient = 1;
  if (style == Style::kWsd) {
    coefficient = wsd_coefficient(*this, count);
  } else if (decay > warmup) {  // else nothing lies between the warm-up and the end
    const double ratio = ratio_of(count - warmup, decay - warmup);
    coefficient = style == Style::kLinear ? 1 - ratio : half_cosine(ratio);
  }
  return min_lr + coefficient * (max_lr - min_lr);
}

double WeightDecaySchedule::weight_decay(std::int64_t count) const {
  if (style == Style::kConstant || count > increment || increment == 0) return end;
  const double ratio = ratio_of(count, increment);
  const double coefficient = style == Style::kLinear ? ratio : half_cosine(1 - ratio);
  return start + coefficient * (end - start);
}

}  // namespace weft
