#include "train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "checkpoint/agreement.hpp"
#include "core/log.hpp"
#include "io/atomic_file.hpp"
#include "mesh/mesh.hpp"
#include "ops/elementwise.hpp"
#include "train/engine.hpp"
#include "train/freeze.hpp"
#include "train/launch.hpp"
#include "train/loss_curve.hpp"
#include "train/metrics.hpp"
#include "train/options.hpp"
#include "train/plan.hpp"
#include "train/progress.hpp"
#include "train/rank_device.hpp"
#include "train/run_checkpoint.hpp"
#include "train/schedule.hpp"
#include "train/signals.hpp"
#include "train/step_trace.hpp"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What every rank of a run shares, read-only.
struct Run {
  TrainConfig config;
  RunData data;
  RunSchedule schedule;
  std::vector<MemoryPlan> plans;  // by pipeline rank
  const StopSignals* signals;
  const Launch& launch;
  std::atomic<std::int64_t>* iteration;  // that is running, for the report of a failure
};

// One rank's part of a run. Rank 0 also reports.
class RankRun {
 public:
  // `world`: in host memory.
  RankRun(const Run& run, Lane& lane, const Groups& groups, Communicator& world)
      : run_(run),
        config_(run.config),
        mesh_(groups.mesh()),
        lane_(lane),
        groups_(groups),
        engine_(lane, groups, EngineOptions::from(run.config)),
        training_(run.data.training->reader()),
        validation_(run.data.validation != nullptr ? run.data.validation->reader() : nullptr) {
    if (!config_.log.trace.empty()) trace_.emplace(config_.log, mesh_, lane_, world);
  }

  TrainSummary train() {
    progress_ = start_run(config_, lane_, engine_);
    summary_.iteration = progress_.iteration;
    last_ = run_.schedule.last_iteration(progress_.iteration, progress_.consumed_samples);
    if (groups_.world().rank() == 0) open_reports();
    if (reports() && progress_.iteration >= last_) {
      log_warn("nothing is left to train: {} holds iteration {} of {}", config_.checkpoint.load,
               progress_.iteration, last_);
    }
    while (progress_.iteration < last_ && !left_) step();
    finish();
    return summary_;
  }

 private:
  bool reports() const { return groups_.world().rank() == 0; }

  void open_reports() {
    reporter_.emplace(ProgressOptions{
        .total = last_, .log_interval = config_.log.log_interval, .mode = config_.log.progress});
    if (!config_.log.metrics.empty()) metrics_.emplace(config_.log.metrics, progress_.iteration);
  }

  BatchShape batch_shape() const {
    return {.global_batch = run_.schedule.batch.batch_size(progress_.consumed_samples),
            .micro_batch = config_.training.micro_batch_size,
            .dp_size = mesh_.size(Axis::kDp)};
  }

  void step() {
    const BatchShape shape = batch_shape();
    const std::int64_t consumed = progress_.consumed_samples;
    const MicrobatchSource source = [&](std::int64_t index, Batch& out) {
      const TraceScope traced(lane_.tools, "data");
      training_->load(shape, consumed, index, mesh_.coordinate(Axis::kDp), out);
    };
    if (run_.launch.processes() || reports()) *run_.iteration = progress_.iteration + 1;
    const double lr = run_.schedule.lr.lr(progress_.scheduled_samples);
    if (trace_) trace_->before_step(summary_.steps + 1);
    const Clock::time_point start = Clock::now();
    const StepResult result =
        traced_step({.iteration = progress_.iteration + 1,
                     .microbatches = shape.microbatches(),
                     .filled_microbatches = (shape.global_batch + shape.micro_batch - 1) / shape.micro_batch,
                     .source = source,
                     .lr = lr,
                     .weight_decay = run_.schedule.weight_decay.weight_decay(progress_.scheduled_samples),
                     .stop_requested = run_.signals->received() != 0});
    const double seconds = seconds_since(start);
    ++progress_.iteration;
    progress_.consumed_samples += shape.global_batch;
    if (result.skipped) {
      ++progress_.skipped;
    } else {
      progress_.scheduled_samples += shape.global_batch;
    }
    train_seconds_ += seconds;
    trained_tokens_ += shape.global_batch * config_.data.seq_length;
    summary_.iteration = progress_.iteration;
    summary_.loss = result.loss;
    ++summary_.steps;
    if (trace_ && trace_->ends_with(summary_.steps)) {
      engine_.flush();  // what the last step has started ends in the timeline
      trace_->write();
    }
    const std::optional<double> validation = evaluation_if_due();
    if (reports()) report(result, shape, lr, seconds, validation);
    save_and_stop_if_due(result);
  }

  StepResult traced_step(const StepInput& input) {
    const TraceScope traced(lane_.tools, "step");
    return engine_.train_step(input);
  }

  void report(const StepResult& result, const BatchShape& shape, double lr, double seconds,
              std::optional<double> validation) {
    const auto tokens = static_cast<double>(shape.global_batch * config_.data.seq_length);
    const StepMetrics metrics{.iteration = progress_.iteration,
                              .lm_loss = result.loss,
                              .grad_norm = result.grad_norm,
                              .lr = lr,
                              .loss_scale = result.loss_scale,
                              .skipped = result.skipped,
                              .tokens = result.tokens,
                              .consumed_samples = progress_.consumed_samples,
                              .step_ms = seconds * 1e3,
                              .tokens_per_second = tokens / seconds,
                              .tflops_per_device = flops_per_token(config_.model, config_.data.seq_length) *
                                                   tokens / seconds / groups_.world().size() / 1e12,
                              .mfu = std::nullopt,  // the peak of a CPU is not known
                              .validation_loss = validation,
                              .experts = expert_metrics(result.experts)};
    if (metrics_) metrics_->write(metrics);
    reporter_->step(metrics, shape.global_batch);
    if (!result.warning.empty()) log_warn("{}", result.warning);
    if (validation) reporter_->validation(progress_.iteration, *validation);
  }

  // At each --eval-interval, and at the end of the run (there over the whole validation part of a text).
  std::optional<double> evaluation_if_due() {
    if (validation_ == nullptr) return std::nullopt;
    const TrainingConfig& t = config_.training;
    const std::int64_t some = t.eval_iters * t.global_batch_size;
    if (progress_.iteration >= last_) {
      summary_.valid_loss = evaluate(run_.data.whole_validation ? run_.data.validation->samples() : some);
      summary_.baselines = run_.data.baselines;
      return summary_.valid_loss;
    }
    if (t.eval_interval > 0 && progress_.iteration % t.eval_interval == 0) return evaluate(some);
    return std::nullopt;
  }

  void save_and_stop_if_due(const StepResult& result) {
    const std::int64_t interval = config_.checkpoint.save_interval;
    const std::int64_t exit_interval = config_.training.exit_interval;
    const bool last = progress_.iteration >= last_;
    const bool due = interval > 0 && progress_.iteration % interval == 0;
    const bool leave = result.stop || (exit_interval > 0 && progress_.iteration % exit_interval == 0);
    if ((due || leave || last) && !config_.checkpoint.save.empty()) save();
    if (!leave || last) return;
    left_ = true;
    if (result.stop) summary_.signal = run_.signals->received();
  }

  void save() {
    const TraceScope traced(lane_.tools, "save");
    const std::string folder =
        save_run(config_, run_.data, run_.schedule, lane_, groups_, engine_, progress_);
    if (reports()) log_info("saved {}", folder);
  }

  // Mean loss over the first `samples` validation samples (all of them at most).
  double evaluate(std::int64_t samples) {
    const TraceScope traced(lane_.tools, "evaluation");
    const std::int64_t micro = config_.training.micro_batch_size;
    const std::int64_t dp = mesh_.size(Axis::kDp);
    samples = std::min(samples, run_.data.validation->samples());
    const BatchShape shape{.global_batch = samples, .micro_batch = micro, .dp_size = dp};
    const Engine::LossSum sum = engine_.evaluate(shape.microbatches(), [&](std::int64_t index, Batch& out) {
      validation_->load(shape, 0, index, mesh_.coordinate(Axis::kDp), out);
    });
    return sum.sum / static_cast<double>(std::max<std::int64_t>(sum.tokens, 1));
  }

  void finish() {
    engine_.flush();
    if (trace_) trace_->finish(summary_.steps);
    if (train_seconds_ > 0)
      summary_.tokens_per_second = static_cast<double>(trained_tokens_) / train_seconds_;
    if (!reports()) return;
    reporter_->finish();
    if (!metrics_) return;
    try {
      write_curve();
    } catch (const Error& error) {  // the run is done, and its metrics are written
      log_warn("no loss curve: {}", error.what());
    }
  }

  // The curve of the whole run, earlier parts included, beside its metrics.
  void write_curve() {
    const std::filesystem::path path = std::filesystem::path(config_.log.metrics).replace_extension(".svg");
    LossCurve curve =
        loss_curve(read_metrics(config_.log.metrics),
                   fmt::format("{:.2f} M parameters, {} steps of {} x {} tokens",
                               static_cast<double>(parameter_count(config_.model)) / 1e6, progress_.iteration,
                               config_.training.global_batch_size, config_.data.seq_length));
    if (run_.data.baselines) {
      curve.baselines = {{"unigram", run_.data.baselines->unigram}, {"bigram", run_.data.baselines->bigram}};
    }
    write_loss_curve(path, curve);
  }

  const Run& run_;
  const TrainConfig& config_;
  const Mesh& mesh_;
  Lane& lane_;
  const Groups& groups_;
  Engine engine_;
  std::unique_ptr<SampleReader> training_, validation_;
  std::optional<StepTrace> trace_;
  Progress progress_;
  TrainSummary summary_;
  std::optional<ProgressReporter> reporter_;
  std::optional<MetricsWriter> metrics_;
  std::int64_t last_ = 0;  // the run's last iteration
  bool left_ = false;      // asked to leave before the end
  double train_seconds_ = 0;
  std::int64_t trained_tokens_ = 0;
};

// By pipeline rank: the ranks of a stage need the same memory.
std::vector<MemoryPlan> plan_run(const TrainConfig& config, const RunSchedule& schedule, const RunData& data,
                                 int ranks_on_machine) {
  const BatchShape shape{.global_batch = config.training.global_batch_size,
                         .micro_batch = config.training.micro_batch_size,
                         .dp_size = data_parallel_size(config.parallel)};
  return plan_training(EngineOptions::from(config),
                       std::max<std::int64_t>(shape.microbatches(), schedule.iterations > 0 ? 1 : 0),
                       data.validation != nullptr,
                       threads_per_rank(config.training.cpu_threads, ranks_on_machine));
}

// What is about to run.
void describe(const TrainConfig& config, const std::vector<MemoryPlan>& plans) {
  for (const std::string& note : notes_of(config)) log_info("{}", note);
  log_info("model ({} parameters):\n{}", parameter_count(config.model), to_string(local_spec(config.model)));
  const EngineOptions engine = EngineOptions::from(config);
  log_info("{} in {}", name_of(engine.device), name_of(engine.dtype));
  if (!config.training.freeze.empty()) {
    log_info("{} of {} parameters are frozen (--freeze {})",
             frozen_parameters(config.model, config.training.freeze), parameter_count(config.model),
             fmt::join(config.training.freeze, " "));
  }
  for (const std::string& note : notes_of_load(config)) log_info("{}", note);
  const ExpertSizes experts = expert_sizes(config.parallel);
  log_info("{} rank{} (tp {}{}, pp {}, dp {}{}), micro batch {}, global batch {}, sequence {}",
           world_size(config.parallel), world_size(config.parallel) == 1 ? "" : "s",
           config.parallel.tensor_model_parallel_size,
           config.parallel.context_parallel_size > 1
               ? fmt::format(", cp {}", config.parallel.context_parallel_size)
               : "",
           config.parallel.pipeline_model_parallel_size, data_parallel_size(config.parallel),
           config.model.moe.num_experts > 0 ? fmt::format("; experts: ep {}, etp {}", experts.ep, experts.etp)
                                            : "",
           config.training.micro_batch_size, config.training.global_batch_size, config.data.seq_length);
  if (config.parallel.pipeline_model_parallel_size > 1)
    log_info("{}", to_string(split_stages(stage_split(config))));
  log_info("{}", to_string(plans));
}

// A line of /proc/self/status ("VmRSS", "VmHWM"), in bytes; 0 where there is none.
std::size_t process_memory(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// Sums over the ranks, one process's share each.
void sum_memory(Lane& lane, Communicator& world, TrainSummary& summary) {
  const Tensor t = lane.alloc(DType::kF64, {3}, "step statistics");
  ops::from_host(lane,
                 std::vector<double>{static_cast<double>(summary.planned_bytes),
                                     static_cast<double>(summary.touched_bytes),
                                     static_cast<double>(summary.grown_bytes)},
                 t);
  world.all_reduce(lane, t).wait(lane);
  const std::vector<double> values = ops::to_host<double>(lane, t);
  summary.planned_bytes = static_cast<std::size_t>(values[0]);
  summary.touched_bytes = static_cast<std::size_t>(values[1]);
  summary.grown_bytes = static_cast<std::size_t>(values[2]);
}

std::size_t growth_since(std::size_t before) {
  const std::size_t peak = process_memory("VmHWM");
  return peak > before ? peak - before : 0;
}

// Processes may have been started with unlike options: found out before anything depends on it.
void check_same_options(const TrainConfig& config, Communicator& world) {
  TrainConfig copy = config;
  OptionSet options("", "");
  add_train_options(options, copy);
  const std::unique_ptr<Arena> arena = Arena::host(1 << 12);
  Workers one(1);
  Lane lane{*arena, one, {}};
  Agreement ranks(lane, world, "");
  const std::vector<std::string> texts = ranks.gather(options.to_toml());
  const auto other =
      std::find_if(texts.begin(), texts.end(), [&](const auto& t) { return t != texts.front(); });
  if (other == texts.end()) return;
  if (other - texts.begin() != world.rank()) {
    world.barrier(lane);  // that rank speaks, which ends this wait
    throw Aborted("ranks run with unlike options");
  }
  const auto lines = [](const std::string& text) {
    std::set<std::string> all;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) all.insert(line);
    return all;
  };
  const std::set<std::string> mine = lines(*other), first = lines(texts.front());
  std::string text;
  const auto add = [&](const std::set<std::string>& a, const std::set<std::string>& b, int rank) {
    text += fmt::format("{}rank {}:", text.empty() ? "" : "; ", rank);
    for (const std::string& line : a) {
      if (!b.contains(line)) text += fmt::format(" {}", line);
    }
  };
  add(first, mine, 0);
  add(mine, first, world.rank());
  config_fail("every rank must be started with the same options, but rank {} differs from rank 0 ({})",
              world.rank(), text);
}

std::int64_t microbatches_of(const TrainConfig& config) {
  return BatchShape{.global_batch = config.training.global_batch_size,
                    .micro_batch = config.training.micro_batch_size,
                    .dp_size = data_parallel_size(config.parallel)}
      .microbatches();
}

TrainSummary run_rank(const Run& run, Communicator& world) {
  const TrainConfig& config = run.config;
  if (run.launch.processes()) check_same_options(config, world);
  const std::size_t before = process_memory("VmRSS");
  const Layout layout = layout_of(config);
  const MemoryPlan& plan =
      run.plans[static_cast<std::size_t>(Mesh(layout.mesh, world.rank()).coordinate(Axis::kPp))];
  Workers workers(threads_per_rank(config.training.cpu_threads, run.launch.ranks_on_machine()));
  RankDevice device(EngineOptions::from(config).device, run.launch.local_rank(world.rank()),
                    need_of(EngineOptions::from(config), plan), workers);
  const Groups groups(
      device.world(world, EngineOptions::from(config), microbatches_of(config),
                   run.data.validation != nullptr, config.parallel.distributed_timeout_seconds),
      layout);
  RankRun rank(run, device.lane(), groups, world);
  TrainSummary summary = rank.train();
  summary.planned_bytes = device.arena().capacity();
  summary.touched_bytes = device.arena().touched();
  // Threads share their process's memory: whoever started them measures it.
  if (run.launch.processes()) summary.grown_bytes = growth_since(before);
  sum_memory(device.lane(), groups.world(), summary);  // of the lane's device, as the lane's memory is
  return summary;
}

void check_trace_file(const TrainConfig& config) {
  const std::filesystem::path tokenizer = config.data.tokenizer_model;
  check_output("--trace", config.log.trace,
               {config.data.batches, config.data.text_file,
                std::filesystem::is_directory(tokenizer) ? tokenizer / "tokenizer.json" : tokenizer,
                config.log.metrics});
}

}  // namespace

TrainSummary run_training(TrainConfig config) {
  const Launch launch(config.parallel);
  RunData data = begin_run(config, launch.ranks_on_machine());
  const RunSchedule schedule = schedule_of_run(config);
  check_memory(config, launch.ranks_on_machine());
  const std::vector<MemoryPlan> plans = plan_run(config, schedule, data, launch.ranks_on_machine());
  if (EngineOptions::from(config).device == DeviceKind::kCpu) check_memory(plans, launch.ranks_on_machine());
  SaveGuard guard;
  if (launch.first()) {
    if (!config.log.metrics.empty()) check_metrics_file(config.log.metrics);
    if (!config.log.trace.empty()) check_trace_file(config);
    guard = prepare_save_folder(config);
    describe(config, plans);
  }

  const StopSignals signals;
  std::atomic<std::int64_t> iteration{0};
  const Run run{std::move(config), std::move(data), schedule, plans, &signals, launch, &iteration};
  TrainSummary summary;
  const std::size_t before = process_memory("VmRSS");
  launch.run({.timeout_seconds = run.config.parallel.distributed_timeout_seconds,
              .where =
                  [&] {
                    return iteration == 0 ? std::string("the start")
                                          : fmt::format("step {}", iteration.load());
                  }},
             [&](Communicator& world) {
               const TrainSummary mine = run_rank(run, world);
               if (world.rank() == 0) summary = mine;
             });
  if (!launch.processes()) summary.grown_bytes = growth_since(before);
  summary.reports = launch.first();
  if (launch.first()) {
    log_info("memory: planned {:.1f} MiB for {} ranks, touched {:.1f} MiB, {} grew by {:.1f} MiB",
             static_cast<double>(summary.planned_bytes) / (1 << 20), world_size(run.config.parallel),
             static_cast<double>(summary.touched_bytes) / (1 << 20),
             launch.processes() ? "the processes" : "the process",
             static_cast<double>(summary.grown_bytes) / (1 << 20));
  }
  return summary;
}

}  // namespace weft
