// StepTrace: `--trace`, the timeline of some steps of a run.
#pragma once

#include <cstdint>

#include "comm/communicator.hpp"
#include "core/host_tools.hpp"
#include "mesh/mesh.hpp"
#include "train/config.hpp"

namespace weft {

class StepTrace {
 public:
  // Of one rank. `host`: the world in host memory, over which the ranks hand rank 0 what they have. All
  // outlive this; a lane on the CPU gets tools from here.
  StepTrace(const LogConfig& config, const Mesh& mesh, Lane& lane, Communicator& host);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Around each step; `number` counts those of this run from 1. Collective at the first traced step.
  void before_step(std::int64_t number);
  // Whether this was the last step to trace: then write().
  bool ends_with(std::int64_t number) const { return lane_.tools->tracing() && number >= last_step(); }
  // Rank 0 writes the file, whole or not at all; a run goes on without it, with a warning. Collective.
  void write();
  // After `steps` steps, the last of the run: writes what there is, or says that there is nothing.
  // Collective.
  void finish(std::int64_t steps);

 private:
  std::int64_t last_step() const { return config_.trace_start_step + config_.trace_steps - 1; }
  void align_clocks(Lane& host_lane);
  std::string events() const;

  const LogConfig& config_;
  const Mesh& mesh_;
  Lane& lane_;
  Communicator& host_;
  HostTools host_tools_;
  bool own_tools_;
  DeviceTools::HostTime zero_{};  // of the file's clock, on this rank's
  std::int64_t steps_ = 0;        // traced so far
  bool one_clock_ = true;         // all ranks read the same clock
};

}  // namespace weft
