// weft bench
#include <algorithm>
#include <filesystem>

#include "cli/commands.hpp"
#include "train/bench_op.hpp"
#include "train/bench_step.hpp"
#include "train/op_cases.hpp"
#include "train/options.hpp"
#include "train/rank_device.hpp"

namespace weft {
namespace {

// What each operation costs of a step, beside the least that it could.
std::string profile_table(const BenchStepResult& r) {
  std::string text = fmt::format(
      "measured beside it: copies {:.0f} GB/s, bf16 products {:.0f} TFLOP/s; an operation's floor is the "
      "larger of "
      "its bytes and its products at these rates\n     ms/step    %   calls  us/call  floor us  of floor  "
      "operation\n",
      r.ceilings.copy_rate / 1e9, r.ceilings.product_rate / 1e12);
  double sum = 0, floors = 0;
  for (const auto& cost : r.profile) sum += cost.ms;
  for (const auto& cost : r.profile) {
    const double floor =
        1e3 * std::max(cost.bytes / r.ceilings.copy_rate,
                       r.ceilings.product_rate > 0 ? cost.flops / r.ceilings.product_rate : 0.0);
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

enum class BenchDType { kDefault, kFp32, kBf16 };

int bench_op(Args args) {
  TrainConfig config;
  BenchOpOptions bench;
  BenchDType dtype = BenchDType::kDefault;
  static constexpr const char* kCache = "cache";
  std::string save;
  OptionSet options(
      "weft bench op",
      "Times operations against their floors: what they must move and multiply, at the rates of a large copy "
      "and a large matrix product on the same device. Shapes are those of the model and the microbatch that "
      "the options of weft train say; of them nothing else is used.");
  options.topic("bench");
  std::string names;
  for (const std::string& name : op_names()) names += (names.empty() ? "" : ", ") + name;
  options.texts("op", bench.ops, "NAME", "of " + names).otherwise("all");
  options.choice(
      "dtype", dtype,
      {{"default", BenchDType::kDefault}, {"fp32", BenchDType::kFp32}, {"bf16", BenchDType::kBf16}},
      "of operands; default: bf16 on GPUs, else fp32");
  options.integer("rounds", bench.rounds, {.low = 1}, "runs of each operation, of which the median counts");
  options.integer("tokens", bench.tokens, {.low = 1}, "rows of activations")
      .otherwise("--micro-batch-size times --seq-length");
  options.real("params", bench.parameters, {.low = 1, .high = 1e12}, "parameters that the optimizer visits")
      .otherwise("the model's");
  options
      .text("save-rates", save, "FILE",
            "write what all operations reach to a file that weft plan reads; without FILE, or as cache, to "
            "~/.cache/weft/rates/DEVICE.json")
      .alone_means(kCache);
  add_train_options(options, config);
  if (answered(options, options.parse(args, [&] {
        std::vector<std::string> problems;
        if (!save.empty() && !bench.ops.empty())
          problems.emplace_back("--save-rates needs the times of all operations; leave --op out");
        return problems;
      })))
    return 0;
  bench.batch_given = options.given("micro-batch-size");
  if (dtype != BenchDType::kDefault) {
    config.training.fp32 = dtype == BenchDType::kFp32;
    config.training.bf16 = dtype == BenchDType::kBf16;
    config.training.fp16 = config.training.fp64 = false;
  }
  choose_device(config, 1);
  std::filesystem::path path;
  if (!save.empty()) {
    const bool cuda = config.parallel.device == ParallelConfig::Device::kCuda;
    path = rates_target(save == kCache ? "" : save, device_name(cuda ? DeviceKind::kCuda : DeviceKind::kCpu));
  }
  const BenchOpResult result = run_bench_op(config, bench);
  print(to_string(result));
  if (save.empty()) return 0;
  write_rates(path, rates_of(result));
  print(fmt::format("rates={}\n", path.string()));
  return 0;
}

}  // namespace

int run_bench(Args args) {
  static constexpr Command commands[] = {{"step", "a training step", bench_step},
                                         {"op", "operations, against their floors", bench_op}};
  return run_one_of("weft bench", "Times parts of a training run.", commands, args);
}

}  // namespace weft
