// Where a rank computes: its memory of the planned size, its stream and the tools of its device.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.hpp"
#include "core/lane.hpp"
#include "ops/device_tools.hpp"
#include "train/device_memory.hpp"
#include "train/engine.hpp"

namespace weft {

class RankDevice {
 public:
  // Of `kind`; on GPUs the one that rank `local_rank` of this machine has. `workers` outlive this. Without
  // `tune` matrix products are as the library chooses: where shapes do not come again often enough for
  // trials. ConfigError where a GPU has less memory than is needed.
  RankDevice(DeviceKind kind, int local_rank, const MemoryNeed& need, Workers& workers, bool tune = true);

  Lane& lane() { return lane_; }
  // The group in which ranks of this device reduce: `world` itself on the CPU, one of NCCL's over it on GPUs.
  // Collective, once; `world` outlives this, and the result lives as long as this. On GPUs an engine of these
  // options takes a step among planned ranks first (see Engine::rehearse).
  Communicator& world(Communicator& world, const EngineOptions& engine, std::int64_t microbatches,
                      bool evaluation, double timeout_seconds);
  // The same with a rehearsal of the caller's: it runs every kernel that the ranks will, on the lane, among
  // planned ranks. Not called on the CPU and for one rank.
  Communicator& world(Communicator& world, const std::function<void()>& rehearse, double timeout_seconds);
  const Arena& arena() const { return *arena_; }

 private:
  std::unique_ptr<Arena> arena_;  // freed after the tools, whose work may still use it
  ops::OpenedDevice opened_;
  Lane lane_;
  std::unique_ptr<Communicator> world_;
};

// The device that --device means here. ConfigError: cuda is asked for, and this build or machine has none,
// too few GPUs for the ranks, ones that this program was not built for, or libraries that are too old.
DeviceKind choose_device(const ParallelConfig& parallel, std::int64_t ranks_on_machine);
// As that, and writes the device and what follows from it into the config.
void choose_device(TrainConfig& config, std::int64_t ranks_on_machine);
// NVIDIA's libraries as this program was built and as they are here; empty without the CUDA backend.
std::vector<GpuLibrary> gpu_libraries();
// On GPUs bf16 is what nobody need ask for.
void use_precision_of_device(TrainConfig& config);

}  // namespace weft
