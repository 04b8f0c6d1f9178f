// weft bench step: a training step, timed.
#pragma once

#include <string>
#include <vector>

#include "train/ceilings.hpp"
#include "train/config.hpp"

namespace weft {

struct BenchStepOptions {
  std::int64_t rounds = 5;
  std::int64_t steps = 10;  // of a round
  std::int64_t warmup = 5;  // before the first round
  // Before each round a line is read from standard input: another program, timed by turns with this one on
  // the same device, says when it has stopped.
  bool paced = false;
  bool profile = false;  // afterwards, the time of each operation of a few steps
};

struct BenchStepResult {
  std::vector<double> ms;       // of a step, by round
  std::vector<double> host_ms;  // of the host in it, its waiting for the device left out
  double loss = 0;              // of the last step
  double warmup_seconds = 0;    // start to the end of the first step
  // Of a step, by operation, longest first.
  struct Cost {
    std::string name;
    double ms = 0, calls = 0, bytes = 0, flops = 0;
  };
  std::vector<Cost> profile;
  Ceilings ceilings;                                // measured beside it, of bf16
  std::size_t planned_bytes = 0, device_bytes = 0;  // of a rank's arena; in use on its device, all told
  bool reports = true;
};
// Prints a line for each round as it ends. The options of a training run say what a step is; its data are
// read in order, and again from the start. Of --load the model's shape is used, the weights are the seed's.
BenchStepResult run_bench_step(TrainConfig config, const BenchStepOptions& options);

}  // namespace weft
