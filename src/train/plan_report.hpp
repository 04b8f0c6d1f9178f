// What weft plan prints: memory, messages, bubble and time of a run on any number of ranks, from its options
// alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/config.hpp"
#include "train/plan.hpp"
#include "train/rates.hpp"
#include "train/step_time.hpp"

namespace weft {

// One pipeline rank: the tensor- and data-parallel ranks of its stages need the same, and send the same but
// for what StepPlan says.
struct RankPlan {
  std::vector<StageRange> stages;  // of its chunks, in order
  MemoryPlan memory;
  // Most chunks x microbatches between forward and backward, and the activations saved for them, in bytes.
  // What a zero-bubble schedule keeps from backward to weight gradient comes on top.
  int in_flight = 0;
  std::int64_t saved_activations = 0;
  Traffic traffic;  // that a rank of these stages sends in a step
};

struct RunPlan {
  Layout layout;                // with the number of microbatches
  std::int64_t parameters = 0;  // of the whole model
  std::vector<RankPlan> ranks;  // by pipeline rank
  // Idle time of a step over the busy time of a rank, with chunks that all take the same time for forward,
  // input gradient and weight gradient, and messages that take none.
  double bubble = 0;

  // On a GPU, of each rank beside its arena: CUDA's context, kernels and library handles (measured on an H200
  // with CUDA 13.0); NCCL's buffers come on top, where there are several ranks. 0 on CPUs.
  std::size_t beside = 0;

  // Of a step, at rates that are known.
  std::optional<Rates> rates;
  StepTime time;

  // Over all ranks.
  std::size_t memory() const;
  std::uint64_t traffic() const;
  const RankPlan& largest() const;  // the rank that needs the most memory
};

// `config` is resolved and has no problems. `rates` are of its device and dtype.
RunPlan plan_of_run(const TrainConfig& config, const std::optional<Rates>& rates = {});

// Tables for people, in MiB; JSON in bytes.
std::string to_string(const RunPlan& plan);
std::string to_json(const RunPlan& plan);

// Time lost of a step as RunPlan::bubble counts it. Steps of many microbatches are not played through: past
// the steady state each round of microbatches takes the same time.
double bubble_of(const PipelineShape& shape);

}  // namespace weft
