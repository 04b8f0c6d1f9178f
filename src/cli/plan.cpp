// weft plan
#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "cli/commands.hpp"
#include "core/gpu.hpp"
#include "data/tokenizer.hpp"
#include "io/atomic_file.hpp"
#include "train/options.hpp"
#include "train/plan_report.hpp"
#include "train/rank_device.hpp"
#include "train/run_checkpoint.hpp"
#include "train/run_data.hpp"

namespace weft {
namespace {

// The run with stand-ins for what only a run needs: data, a learning rate and a number of steps.
TrainConfig as_if_run(TrainConfig c) {
  if (c.data.data_path.empty() && c.data.text_file.empty() && c.data.batches.empty()) {
    c.data.data_path = {"data"};
  }
  OptimizerConfig& o = c.optimizer;
  if (o.lr < 0) o.lr = std::max(o.min_lr, o.lr_warmup_init);
  TrainingConfig& t = c.training;
  if (t.train_iters == 0 && t.train_samples == 0) {
    const bool samples = t.rampup_batch_size[0] != 0 || o.lr_decay_samples != 0 || o.lr_warmup_samples != 0 ||
                         o.lr_wsd_decay_samples != 0;
    (samples ? t.train_samples : t.train_iters) = std::numeric_limits<std::int32_t>::max();
  }
  return c;
}

std::vector<std::string> problems_of_plan(const OptionSet& options, const TrainConfig& config) {
  std::vector<std::string> problems = problems_of(as_if_run(config));
  if (options.given("group-query-attention") && !options.given("num-query-groups")) {
    problems.emplace_back("--group-query-attention needs --num-query-groups N");
  }
  if (config.parallel.device == ParallelConfig::Device::kCuda && !built_with_cuda()) {
    problems.push_back("--device cuda: " + find_gpus().why_none);
  }
  std::vector<std::string> later = unsupported_yet(config);
  std::move(later.begin(), later.end(), std::back_inserter(problems));
  return problems;
}

// What a run would learn from the files that are given: a model to load, the sizes of given batches, a
// tokenizer's vocabulary.
TrainConfig with_files(TrainConfig config) {
  if (config.parallel.device == ParallelConfig::Device::kAuto) {
    config.parallel.device =
        find_gpus().list.empty() ? ParallelConfig::Device::kCpu : ParallelConfig::Device::kCuda;
  }
  use_precision_of_device(config);
  config = resolved(std::move(config));
  if (!config.checkpoint.load.empty()) use_loaded_model(config);
  if (!config.data.batches.empty()) {
    open_run_data(config);
  } else if (config.model.vocab_size == 0 && !config.data.tokenizer_model.empty()) {
    config.model.vocab_size = Tokenizer::load(config.data.tokenizer_model).vocab_size();
  }
  config = resolved(config);
  if (std::vector<std::string> problems = problems_of(as_if_run(config)); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return config;
}

}  // namespace

int run_plan(Args args) {
  TrainConfig config;
  std::string json, rates;
  OptionSet options(
      "weft plan",
      "Memory of each pipeline rank, what it sends in a step, the bubble, and the time of a step, of a "
      "training run on any number of ranks. Takes the options of weft train and needs no data: the real step "
      "is run without memory and without messages.");
  add_train_options(options, config);
  options.topic("output");
  options.text("json", json, "FILE",
               "the plan as JSON, in bytes; -: to standard output in place of the tables");
  options
      .text("rates", rates, "FILE",
            "how fast the device is, as weft bench op --save-rates writes it: what the time of a step "
            "follows from")
      .otherwise("those saved of this machine's device; else on GPUs figures of an H200");
  if (answered(options, options.parse(args, [&] { return problems_of_plan(options, config); }))) return 0;

  if (!json.empty() && json != "-") check_output("--json", json);
  config = with_files(std::move(config));
  const EngineOptions engine = EngineOptions::from(config);
  const RunPlan plan = plan_of_run(config, find_rates(rates, engine.device, engine.dtype));
  print(json == "-" ? to_json(plan) : to_string(plan));
  if (!json.empty() && json != "-") write_file(json, to_json(plan));
  return 0;
}

}  // namespace weft
