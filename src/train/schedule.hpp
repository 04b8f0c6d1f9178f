// What each step is made with: batch sizes, learning rate and weight decay as functions of progress.
#pragma once

#include "optim/batch_rampup.hpp"
#include "optim/lr_schedule.hpp"
#include "train/config.hpp"

namespace weft {

struct RunSchedule {
  BatchRampup batch;
  LrSchedule lr;                     // in samples
  WeightDecaySchedule weight_decay;  // in samples
  std::int64_t iterations = 0;

  static RunSchedule from(const TrainConfig& config);
};

// Where a run stands: what a checkpoint holds beside tensors.
struct Progress {
  std::int64_t iteration = 0;          // finished steps, skipped ones included
  std::int64_t consumed_samples = 0;   // read from the data
  std::int64_t scheduled_samples = 0;  // of steps that updated: the learning rate's clock
  std::int64_t skipped = 0;
  bool operator==(const Progress&) const = default;
};

}  // namespace weft
