#include "train/rank_device.hpp"

#include "comm/nccl/nccl_communicator.hpp"
#include "core/gpu.hpp"
#include "core/log.hpp"
#include "train/rates.hpp"

namespace weft {
namespace {

std::unique_ptr<Arena> reserve(DeviceKind kind, int local_rank, const MemoryNeed& need) {
  if (kind != DeviceKind::kCuda) return Arena::host(need.arena);
  const int gpus = static_cast<int>(find_gpus().list.size());
  const int index = gpus > 0 ? local_rank % gpus : 0;
  if (const std::string tight = tight_memory_text(need, index, gpu_memory(index)); !tight.empty())
    log_warn("{}", tight);
  return gpu_arena(index, need.arena,
                   [&](const GpuMemory& found) { return out_of_memory_text(need, index, found); });
}

// Why this program cannot use the GPUs that are here; empty: it can.
std::string obstacle(const Gpu& gpu) {
  if (!built_for(gpu)) {
    return fmt::format(
        "the GPU ({}) has compute capability {}.{}, and this program was built for {}; build it with "
        "-DWEFT_CUDA_ARCH={}{}",
        gpu.name, gpu.major, gpu.minor, built_architectures(), gpu.major, gpu.minor);
  }
  for (const GpuLibrary& library : gpu_libraries()) {
    if (std::string problem = problem_of(library); !problem.empty()) return problem;
  }
  return "";
}

}  // namespace

RankDevice::RankDevice(DeviceKind kind, int local_rank, const MemoryNeed& need, Workers& workers, bool tune)
    : arena_(reserve(kind, local_rank, need)),
      opened_(ops::open_device(
          arena_->device(), {.plan_cache = tune ? cache_folder("gemm_plans").string() : "", .tune = tune})),
      lane_{*arena_, workers, opened_.compute, opened_.tools.get()} {}

Communicator& RankDevice::world(Communicator& world, const EngineOptions& engine, std::int64_t microbatches,
                                bool evaluation, double timeout_seconds) {
  const auto rehearse = [&] {
    const Groups planned = Groups::planned(engine.layout, world.rank());
    Engine(lane_, planned, engine).rehearse(microbatches, evaluation);
  };
  return this->world(world, rehearse, timeout_seconds);
}

Communicator& RankDevice::world(Communicator& world, const std::function<void()>& rehearse,
                                double timeout_seconds) {
  if (arena_->device().kind != DeviceKind::kCuda || world.size() == 1) return world;
  rehearse();
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(timeout_seconds * 1000));
  world_ = nccl_communicator(world, lane_, {.timeout = timeout});
  return *world_;
}

std::vector<GpuLibrary> gpu_libraries() {
  if (!built_with_cuda()) return {};
  return {ops::attention_library(), nccl_library()};
}

DeviceKind choose_device(const ParallelConfig& parallel, std::int64_t ranks_on_machine) {
  using Choice = ParallelConfig::Device;
  if (parallel.device == Choice::kCpu) return DeviceKind::kCpu;
  const Gpus gpus = find_gpus();
  const bool must = parallel.device == Choice::kCuda;
  if (gpus.list.empty()) {
    if (must) config_fail("--device cuda: {}", gpus.why_none);
    return DeviceKind::kCpu;
  }
  if (const std::string text = obstacle(gpus.list.front()); !text.empty()) {
    if (must) config_fail("--device cuda: {}", text);
    log_warn("running on the CPU: {}", text);
    return DeviceKind::kCpu;
  }
  const auto count = static_cast<std::int64_t>(gpus.list.size());
  if (ranks_on_machine > count && !nccl_ranks_share_gpus()) {
    config_fail(
        "--device {}: {} ranks on this machine, and it has {} GPU{}; one rank runs on each GPU. Take {} "
        "rank{} (a smaller layout or --ranks), or --device cpu",
        must ? "cuda" : "auto", ranks_on_machine, count, count == 1 ? "" : "s", count, count == 1 ? "" : "s");
  }
  return DeviceKind::kCuda;
}

void choose_device(TrainConfig& config, std::int64_t ranks_on_machine) {
  const bool cuda = choose_device(config.parallel, ranks_on_machine) == DeviceKind::kCuda;
  config.parallel.device = cuda ? ParallelConfig::Device::kCuda : ParallelConfig::Device::kCpu;
  use_precision_of_device(config);
}

void use_precision_of_device(TrainConfig& config) {
  TrainingConfig& t = config.training;
  const bool cuda = config.parallel.device == ParallelConfig::Device::kCuda;
  if (cuda && !t.fp32 && !t.fp16 && !t.fp64) t.bf16 = true;
}

}  // namespace weft
