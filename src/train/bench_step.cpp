#include "train/bench_step.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include "core/gpu.hpp"
#include "core/log.hpp"
#include "ops/elementwise.hpp"
#include "train/engine.hpp"
#include "train/launch.hpp"
#include "train/plan.hpp"
#include "train/rank_device.hpp"
#include "train/run_data.hpp"
#include "train/schedule.hpp"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

class RankBench {
 public:
  RankBench(const TrainConfig& config, const RunData& data, const BenchStepOptions& options, Lane& lane,
            const Groups& groups)
      : config_(config),
        options_(options),
        lane_(lane),
        groups_(groups),
        engine_(lane, groups, EngineOptions::from(config)),
        reader_(data.training->reader()),
        samples_(data.training->samples()),
        shape_{.global_batch = config.training.global_batch_size,
               .micro_batch = config.training.micro_batch_size,
               .dp_size = groups.mesh().size(Axis::kDp)} {
    engine_.initialize();
  }

  void run(BenchStepResult& result, Clock::time_point start) {
    const bool reports = groups_.world().rank() == 0;
    step();
    synchronize(lane_);
    result.warmup_seconds = ms_since(start) / 1e3;
    for (std::int64_t i = 1; i < options_.warmup; ++i) step();
    for (std::int64_t round = 0; round < options_.rounds; ++round) {
      synchronize(lane_);
      if (options_.paced && !goes_on()) break;
      groups_.world().barrier(lane_);
      const Clock::time_point begin = Clock::now();
      host_ms_ = 0;
      for (std::int64_t i = 0; i < options_.steps; ++i) step();
      synchronize(lane_);
      const double ms = ms_since(begin) / static_cast<double>(options_.steps);
      result.ms.push_back(ms);
      result.host_ms.push_back(host_ms_ / static_cast<double>(options_.steps));
      if (!reports) continue;
      const double tokens = static_cast<double>(shape_.global_batch * config_.data.seq_length);
      std::fputs(fmt::format("round={} ms={:.3f} host_ms={:.3f} tokens_per_second={:.0f} loss={:.6f}\n",
                             round + 1, ms, result.host_ms.back(), tokens / ms * 1e3, last_.loss)
                     .c_str(),
                 stdout);
      std::fflush(stdout);
    }
    if (options_.profile && lane_.tools != nullptr) {
      result.ceilings = measure_ceilings(lane_, DType::kBF16, CeilingSizes::of(lane_.device().kind));
      result.profile = profile();
    }
    engine_.flush();
    result.loss = last_.loss;
  }

 private:
  // Whether standard input has another line. It is rank 0's, and all ranks go by it.
  bool goes_on() {
    double lines = 0;
    if (groups_.world().rank() == 0) {
      std::fputs("ready\n", stdout);
      std::fflush(stdout);
      std::string line;
      lines = std::getline(std::cin, line) ? 1 : 0;
    }
    const Tensor t = lane_.alloc(DType::kF64, {1}, "step statistics");
    ops::from_host(lane_, std::vector<double>{lines}, t);
    groups_.world().all_reduce(lane_, t).wait(lane_);
    return ops::to_host<double>(lane_, t).front() > 0;
  }

  std::vector<BenchStepResult::Cost> profile() {
    constexpr int kSteps = 3;
    synchronize(lane_);
    lane_.tools->trace(true);
    for (int i = 0; i < kSteps; ++i) step();
    std::map<std::string, BenchStepResult::Cost> by_name;
    for (const TracedOperation& op : lane_.tools->traced()) {
      if (op.row != TraceRow::kCompute) continue;
      BenchStepResult::Cost& cost = by_name[op.cost.name];
      cost.name = op.cost.name;
      cost.bytes += op.cost.bytes / kSteps;
      cost.flops += op.cost.flops / kSteps;
      cost.ms += op.duration() / 1e3 / kSteps;
      cost.calls += 1.0 / kSteps;
    }
    lane_.tools->trace(false);
    std::vector<BenchStepResult::Cost> costs;
    for (auto& [name, cost] : by_name) costs.push_back(std::move(cost));
    std::sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.ms > b.ms; });
    return costs;
  }

  void step() {
    const std::int64_t consumed =
        iteration_ * shape_.global_batch % (samples_ / shape_.global_batch * shape_.global_batch);
    ++iteration_;
    const MicrobatchSource source = [&](std::int64_t index, Batch& out) {
      reader_->load(shape_, consumed, index, groups_.mesh().coordinate(Axis::kDp), out);
    };
    const Clock::time_point begin = Clock::now();
    last_ = engine_.train_step({.iteration = iteration_,
                                .microbatches = shape_.microbatches(),
                                .source = source,
                                .lr = config_.optimizer.lr,
                                .weight_decay = config_.optimizer.weight_decay});
    host_ms_ += ms_since(begin) - last_.waited_ms;
  }

  const TrainConfig& config_;
  const BenchStepOptions& options_;
  Lane& lane_;
  const Groups& groups_;
  Engine engine_;
  std::unique_ptr<SampleReader> reader_;
  std::int64_t samples_;
  BatchShape shape_;
  std::int64_t iteration_ = 0;
  double host_ms_ = 0;  // of this round: the host's own work, not its waiting for the device
  StepResult last_;
};

}  // namespace

BenchStepResult run_bench_step(TrainConfig config, const BenchStepOptions& options) {
  const Clock::time_point start = Clock::now();
  const Launch launch(config.parallel);
  RunData data = begin_run(config, launch.ranks_on_machine());
  const EngineOptions engine = EngineOptions::from(config);
  const int threads = threads_per_rank(config.training.cpu_threads, launch.ranks_on_machine());
  const BatchShape shape{.global_batch = config.training.global_batch_size,
                         .micro_batch = config.training.micro_batch_size,
                         .dp_size = data_parallel_size(config.parallel)};
  if (data.training->samples() < shape.global_batch) {
    config_fail("{} samples of data do not fill one batch of --global-batch-size {}",
                data.training->samples(), shape.global_batch);
  }
  check_memory(config, launch.ranks_on_machine());
  const std::vector<MemoryPlan> plans = plan_training(engine, shape.microbatches(), false, threads);
  if (engine.device == DeviceKind::kCpu) check_memory(plans, launch.ranks_on_machine());
  if (launch.first())
    log_info("{} in {}; {}", name_of(engine.device), name_of(engine.dtype), to_string(plans));
  BenchStepResult result{.reports = launch.first()};
  launch.run({.timeout_seconds = config.parallel.distributed_timeout_seconds}, [&](Communicator& world) {
    const Mesh mesh(engine.layout.mesh, world.rank());
    const MemoryPlan& plan = plans[static_cast<std::size_t>(mesh.coordinate(Axis::kPp))];
    Workers workers(threads);
    RankDevice device(engine.device, launch.local_rank(world.rank()), need_of(engine, plan), workers);
    const Groups groups(
        device.world(world, engine, shape.microbatches(), false, config.parallel.distributed_timeout_seconds),
        engine.layout);
    RankBench bench(config, data, options, device.lane(), groups);
    BenchStepResult mine{.reports = launch.first()};
    bench.run(mine, start);
    mine.planned_bytes = plan.arena;
    if (engine.device == DeviceKind::kCuda)
      mine.device_bytes = gpu_bytes_in_use(device.arena().device().index);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

}  // namespace weft
