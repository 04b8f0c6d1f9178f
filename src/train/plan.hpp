// The memory of a run, its messages and its time, before it starts: the real code run on meta memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/engine.hpp"
#include "train/step_time.hpp"

namespace weft {

struct MemoryPlan {
  std::size_t weights = 0, gradients = 0, optimizer = 0;  // flat buffers
  std::size_t activations = 0;                            // saved by the forward pass of one microbatch
  std::vector<std::size_t> chunk_activations;             // the same by chunk of this rank
  std::size_t tables = 0;       // rotary tables and other memory that lives as long as the run
  std::size_t arena = 0;        // what the rank's arena must hold: the peak of a step and of an evaluation
  std::int64_t parameters = 0;  // on this rank
};

// Bytes that a rank has sent, by what carries them: "tp", "dp", "pp activations", "pp gradients",
// "embedding", "kv_replicas", "tokens to experts", "edp" (gradients of experts), and of a few numbers a step
// "routers", "model" and "world". Counted as Communicator::bytes_sent() counts. Planned all-to-alls take
// tokens to all experts alike.
using Traffic = std::map<std::string, std::uint64_t>;
Traffic bytes_sent(const Groups& groups);
std::uint64_t total(const Traffic& traffic);

struct StepPlan {
  MemoryPlan memory;
  // Of one training step, on the first data-parallel rank. With the distributed optimizer the others add up
  // other slices of the gradients that tensor-parallel ranks, or the ends of the pipeline, both have.
  Traffic traffic;
  RankTime time;  // of one training step, where rates are given
};

// By pipeline rank (tensor- and data-parallel ranks of a stage need the same; of context-parallel ranks it is
// the one that needs most): a training step with this many microbatches, and an evaluation when asked for.
std::vector<MemoryPlan> plan_training(const EngineOptions& options, std::int64_t microbatches,
                                      bool evaluation, int threads);
// The same with what a step sends, and at these rates how long its parts take.
std::vector<StepPlan> plan_step(const EngineOptions& options, std::int64_t microbatches, bool evaluation,
                                int threads, const std::optional<Rates>& rates = {});
// A scoring run of this many microbatches: logits, and gradients when asked for.
std::vector<MemoryPlan> plan_scoring(const EngineOptions& options, std::int64_t microbatches, bool gradients,
                                     int threads);

// A ConfigError that says the plan where that of all `ranks`, and `beside` bytes more, is beyond the memory
// of this machine: the system would end the process without a word.
void check_memory(const std::vector<MemoryPlan>& plans, std::int64_t ranks, std::size_t beside = 0);
// The same before anything is built, by the weights, gradients and optimizer states alone: a slip in a number
// must not take minutes to find. `ranks`: of the world, those on this machine.
void check_memory(const TrainConfig& config, std::int64_t ranks);
// Of those, the bytes of one parameter on all data- and context-parallel ranks together; of an expert's, on
// all ranks that hold it.
std::int64_t bytes_of_parameter(const TrainConfig& config, bool of_expert = false);
// Of one that is frozen: its weight alone.
std::int64_t bytes_of_frozen_parameter(const TrainConfig& config);

// A line: each part in MiB, and the peak; for several stages one line each.
std::string to_string(const MemoryPlan& plan);
std::string to_string(const std::vector<MemoryPlan>& plans);

}  // namespace weft
