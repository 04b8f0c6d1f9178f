#include "train/schedule.hpp"

#include <cmath>

namespace weft {
namespace {

LrSchedule::Style style_of(OptimizerConfig::DecayStyle style) {
  switch (style) {
    case OptimizerConfig::DecayStyle::kConstant:
      return LrSchedule::Style::kConstant;
    case OptimizerConfig::DecayStyle::kLinear:
      return LrSchedule::Style::kLinear;
    case OptimizerConfig::DecayStyle::kCosine:
      return LrSchedule::Style::kCosine;
    case OptimizerConfig::DecayStyle::kInverseSquareRoot:
      return LrSchedule::Style::kInverseSquareRoot;
    case OptimizerConfig::DecayStyle::kWsd:
      return LrSchedule::Style::kWsd;
  }
  return LrSchedule::Style::kLinear;
}

LrSchedule::WsdStyle style_of(OptimizerConfig::WsdStyle style) {
  switch (style) {
    case OptimizerConfig::WsdStyle::kExponential:
      return LrSchedule::WsdStyle::kExponential;
    case OptimizerConfig::WsdStyle::kLinear:
      return LrSchedule::WsdStyle::kLinear;
    case OptimizerConfig::WsdStyle::kCosine:
      return LrSchedule::WsdStyle::kCosine;
    case OptimizerConfig::WsdStyle::kMinusSqrt:
      return LrSchedule::WsdStyle::kMinusSqrt;
  }
  return LrSchedule::WsdStyle::kExponential;
}

WeightDecaySchedule::Style style_of(OptimizerConfig::IncrStyle style) {
  switch (style) {
    case OptimizerConfig::IncrStyle::kConstant:
      return WeightDecaySchedule::Style::kConstant;
    case OptimizerConfig::IncrStyle::kLinear:
      return WeightDecaySchedule::Style::kLinear;
    case OptimizerConfig::IncrStyle::kCosine:
      return WeightDecaySchedule::Style::kCosine;
  }
  return WeightDecaySchedule::Style::kConstant;
}

}  // namespace

std::int64_t RunSchedule::last_iteration(std::int64_t iteration, std::int64_t consumed) const {
  if (samples == 0) return iterations;
  for (; consumed + batch.batch_size(consumed) <= samples; ++iteration)
    consumed += batch.batch_size(consumed);
  return iteration;
}

RunSchedule RunSchedule::from(const TrainConfig& c) {
  const TrainingConfig& t = c.training;
  const OptimizerConfig& o = c.optimizer;
  RunSchedule s;
  s.batch = {.global_batch_size = t.global_batch_size,
             .start = t.rampup_batch_size[0],
             .increment = t.rampup_batch_size[1],
             .samples = t.rampup_batch_size[2]};
  s.samples = t.train_samples;
  s.iterations = t.train_samples > 0 ? s.batch.iterations(t.train_samples) : t.train_iters;
  // Lengths given in iterations are those of full batches, as in Megatron.
  const auto samples = [&](std::int64_t in_samples, std::int64_t in_iterations) {
    return in_samples > 0 ? in_samples : in_iterations * t.global_batch_size;
  };
  const std::int64_t total = samples(t.train_samples, t.train_iters);
  std::int64_t decay = samples(o.lr_decay_samples, o.lr_decay_iters);
  if (decay == 0) decay = total;
  std::int64_t warmup = samples(o.lr_warmup_samples, o.lr_warmup_iters);
  if (o.lr_warmup_fraction > 0) warmup = std::llround(o.lr_warmup_fraction * static_cast<double>(decay));
  s.lr = {.init_lr = o.lr_warmup_init,
          .max_lr = o.lr,
          .min_lr = o.min_lr,
          .warmup = warmup,
          .decay = decay,
          .style = style_of(o.lr_decay_style),
          .wsd_decay = samples(o.lr_wsd_decay_samples, o.lr_wsd_decay_iters),
          .wsd_style = style_of(o.lr_wsd_decay_style)};
  s.weight_decay = {.start = o.start_weight_decay >= 0 ? o.start_weight_decay : o.weight_decay,
                    .end = o.end_weight_decay >= 0 ? o.end_weight_decay : o.weight_decay,
                    .increment = total,
                    .style = style_of(o.weight_decay_incr_style)};
  return s;
}

}  // namespace weft
