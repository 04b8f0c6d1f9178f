// Learning rate and weight decay as functions of progress: the rules of Megatron's OptimizerParamScheduler.
//
// Progress ("count") is what has been consumed by finished updates, in samples or in steps; every length
// below is in the same unit. The first update is made with count 0. Skipped updates (fp16 overflow) do not
// count.
#pragma once

#include <cstdint>

namespace weft {

struct LrSchedule {
  enum class Style { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
  enum class WsdStyle { kExponential, kLinear, kCosine, kMinusSqrt };

  double init_lr = 0;  // where the warm-up starts
  double max_lr = 0, min_lr = 0;
  std::int64_t warmup = 0;  // 0: none, the first update is made with max_lr
  std::int64_t decay =
      0;  // where min_lr is reached, warm-up included; beyond it min_lr stays (but for kConstant)
  Style style = Style::kLinear;
  std::int64_t wsd_decay = 0;  // warm-up, stable, decay: the length of the last part, which ends at `decay`
  WsdStyle wsd_style = WsdStyle::kExponential;

  double lr(std::int64_t count) const;
  bool operator==(const LrSchedule&) const = default;
};

struct WeightDecaySchedule {
  enum class Style { kConstant, kLinear, kCosine };

  double start = 0, end = 0;   // kConstant: `end`
  std::int64_t increment = 0;  // where `end` is reached
  Style style = Style::kConstant;

  double weight_decay(std::int64_t count) const;
  bool operator==(const WeightDecaySchedule&) const = default;
};

}  // namespace weft
