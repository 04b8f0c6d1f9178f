// weft train: from options to a trained model.
#pragma once

#include <optional>

#include "train/config.hpp"
#include "train/run_data.hpp"

namespace weft {

// What a run prints at its end, as key=value lines on stdout.
struct TrainSummary {
  std::int64_t iteration = 0;
  std::int64_t steps = 0;            // made by this run
  double loss = 0;                   // of the last step
  double tokens_per_second = 0;      // over all steps of this run, without evaluations and saves
  std::optional<double> valid_loss;  // nats per token
  std::optional<TextBaselines> baselines;
  // Memory: what the plan said for all ranks of this process, how much of it was touched, and by how much the
  // process grew over its size before the first rank started (VmHWM − VmRSS).
  std::size_t planned_bytes = 0, touched_bytes = 0, grown_bytes = 0;
  bool reports = true;  // this process holds rank 0: what follows the run is its to say
  int signal = 0;       // the signal that ended the run after a clean save
};

// Runs the whole training. Everything that can be wrong with options, files and folders is found before
// memory is taken (ConfigError); what happens later is an Error, and the last good checkpoint stays as it is.
TrainSummary run_training(TrainConfig config);

}  // namespace weft
