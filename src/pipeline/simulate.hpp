// Runs the programs of a pipeline without a model: who waits for whom, how long it takes, what it keeps.
//
// Messages are rendezvous: one starts when both its send and its receive have been started and are the oldest
// unfinished messages of their queues, and holds both queues for its time. Computing waits only for the data
// that it reads; a send waits until few enough of its channel are unfinished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/action.hpp"

namespace weft {

// The queues (communicators with their streams) that a rank puts its messages in.
enum class Channels {
  kPerEdge,       // one for every channel_of(): what the executor has
  kPerDirection,  // one for activations, one for gradients: interleaved deadlocks
  kSingle,        // one for all: 1F1B deadlocks
};

// Of one stage and one microbatch. Times in any unit.
struct StageCost {
  double forward = 1, backward = 1, weight_grad = 1;
  std::int64_t saved_bytes = 1;    // kept from the start of the forward to the end of the backward
  std::int64_t pending_bytes = 1;  // kept from the end of the backward to the end of the weight gradient
};

struct SimulationInput {
  std::vector<StageCost> stages = {StageCost{}};  // of every stage, or one for all
  double message = 0;                             // time of a message between ranks
  int sends_in_flight = 0;                        // unfinished ones of a channel, at most; 0: any number
  Channels channels = Channels::kPerEdge;
};

struct TimelineEntry {
  std::size_t action;  // index in the rank's program; a Forward, Backward or WeightGrad
  double begin, end;
};

struct RankResult {
  std::vector<TimelineEntry> timeline;
  double busy = 0;         // sum of the times of its actions
  int peak_live = 0;       // most (chunk, microbatch) pairs between forward and weight gradient
  int peak_in_flight = 0;  // the same between forward and backward
  int peak_pending = 0;    // the same between backward and weight gradient
  std::int64_t peak_bytes = 0;

  double begin() const { return timeline.empty() ? 0 : timeline.front().begin; }
  double end() const { return timeline.empty() ? 0 : timeline.back().end; }
  // Idle time between the rank's first and last action, relative to its busy time. A step's real bubble only
  // where a rank may start its next step before the others have ended this one.
  double bubble() const { return busy > 0 ? (end() - begin() - busy) / busy : 0; }
};

struct SimulationResult {
  // Empty: every action ran. Otherwise who stopped and what each waits for; the rest holds what ran.
  std::vector<std::string> faults;
  std::vector<RankResult> ranks;
  double makespan = 0;

  bool complete() const { return faults.empty(); }
  // Makespan beyond the busy time of the busiest rank, relative to it: the bubble of a step whose ranks all
  // wait for each other at its end, as a gradient clip makes them.
  double bubble() const;
  // The largest bubble() of a rank.
  double device_bubble() const;
};

SimulationResult simulate(const std::vector<Program>& programs, const SimulationInput& input = {});

}  // namespace weft
