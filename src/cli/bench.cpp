// weft bench
#include <algorithm>

#include "cli/commands.hpp"
#include "train/bench_step.hpp"
#include "train/options.hpp"

namespace weft {
namespace {

int bench_step(Args args) {
  TrainConfig config;
  BenchStepOptions bench;
  OptionSet options(
      "weft bench step",
      "Times a training step. Takes the options of weft train; --batches or --data-path give the "
      "tokens, which are read in order and again from the start.");
  options.topic("bench");
  options.integer("rounds", bench.rounds, {.low = 1}, "rounds, each timed as a whole");
  options.integer("steps-per-round", bench.steps, {.low = 1}, "steps of a round");
  options.integer("warmup", bench.warmup, {.low = 1}, "steps before the first round");
  options.flag("profile", bench.profile, "afterwards, the time that each operation takes of a step (GPUs)");
  options.flag("paced", bench.paced, "wait for a line of standard input before each round");
  add_train_options(options, config);
  config.training.train_iters = 1;
  if (answered(options, parse_train_options(options, config, args))) return 0;
  const BenchStepResult result = run_bench_step(config, bench);
  if (!result.reports || result.ms.empty()) return 0;
  double sum = 0;
  for (const auto& cost : result.profile) sum += cost.ms;
  for (const auto& cost : result.profile) {
    print(fmt::format("{:9.3f} ms {:5.1f} %  {:5.0f} x {:8.1f} us  {}\n", cost.ms, 100 * cost.ms / sum,
                      cost.calls, 1e3 * cost.ms / cost.calls, cost.name));
  }
  if (sum > 0) print(fmt::format("{:9.3f} ms in operations\n", sum));
  std::vector<double> sorted = result.ms;
  std::sort(sorted.begin(), sorted.end());
  print(fmt::format(
      "median_ms={:.3f}\nmin_ms={:.3f}\nmax_ms={:.3f}\nfirst_step_seconds={:.2f}\narena_mib={:.1f}\n"
      "device_mib={:.1f}\n",
      sorted[sorted.size() / 2], sorted.front(), sorted.back(), result.warmup_seconds,
      static_cast<double>(result.planned_bytes) / (1 << 20),
      static_cast<double>(result.device_bytes) / (1 << 20)));
  return 0;
}

}  // namespace

int run_bench(Args args) {
  static constexpr Command commands[] = {{"step", "a training step", bench_step}};
  return run_one_of("weft bench", "Times parts of a training run.", commands, args);
}

}  // namespace weft
