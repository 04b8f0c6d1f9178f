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

  // Of them, those still to come after `iteration` steps that have read `consumed` samples: where the length
  // is given in samples it is these that count, whatever the batches were.
  std::int64_t last_iteration(std::int64_t iteration, std::int64_t consumed) const;
  std::int64_t samples = 0;  // --train-samples; 0: the length is given in iterations

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
