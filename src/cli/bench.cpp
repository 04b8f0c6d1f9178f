// weft bench
#include <algorithm>

#include "cli/commands.hpp"
#include "train/bench_step.hpp"
#include "train/options.hpp"

namespace weft {
namespace {

// What each operation costs of a step, beside the least that it could.
std::string profile_table(const BenchStepResult& r) {
  std::string text = fmt::format(
      "measured beside it: copies {:.0f} GB/s, bf16 products {:.0f} TFLOP/s; an operation's floor is the "
      "larger of "
      "its bytes and its products at these rates\n     ms/step    %   calls  us/call  floor us  of floor  "
      "operation\n",
      r.copy_rate / 1e9, r.product_rate / 1e12);
  double sum = 0, floors = 0;
  for (const auto& cost : r.profile) sum += cost.ms;
  for (const auto& cost : r.profile) {
    const double floor =
        1e3 * std::max(cost.bytes / r.copy_rate, r.product_rate > 0 ? cost.flops / r.product_rate : 0.0);
    floors += std::min(floor, cost.ms);
    text += fmt::format("{:12.3f} {:4.1f} {:7.0f} {:8.1f} {:9.1f} {:8.2f}x  {}\n", cost.ms,
                        100 * cost.ms / sum, cost.calls, 1e3 * cost.ms / cost.calls, 1e3 * floor / cost.calls,
                        floor > 0 ? cost.ms / floor : 0.0, cost.name);
  }
  return text + fmt::format("{:12.3f} ms in operations, floor {:.3f} ms\n", sum, floors);
}

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
  if (!result.profile.empty()) print(profile_table(result));
  std::vector<double> sorted = result.ms;
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> host = result.host_ms;
  std::sort(host.begin(), host.end());
  print(
      fmt::format("median_ms={:.3f}\nmin_ms={:.3f}\nmax_ms={:.3f}\nhost_ms={:.3f}\nfirst_step_seconds={:.2f}"
                  "\narena_mib={:.1f}\n"
                  "device_mib={:.1f}\n",
                  sorted[sorted.size() / 2], sorted.front(), sorted.back(), host[host.size() / 2],
                  result.warmup_seconds, static_cast<double>(result.planned_bytes) / (1 << 20),
                  static_cast<double>(result.device_bytes) / (1 << 20)));
  return 0;
}

}  // namespace

int run_bench(Args args) {
  static constexpr Command commands[] = {{"step", "a training step", bench_step}};
  return run_one_of("weft bench", "Times parts of a training run.", commands, args);
}

}  // namespace weft
