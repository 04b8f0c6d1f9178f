// Pipeline schedules: pure functions from a shape to the program of each rank.
//
// In every one of them the weight gradients of a stage run in microbatch order, so that sums over
// microbatches have the same bits whatever the schedule.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/action.hpp"

namespace weft {

enum class PipelineSchedule {
  kGpipe,        // all forwards, then all backwards
  k1F1B,         // min(M, P - rank - 1) forwards first, then forward and backward in turn
  kInterleaved,  // 1F1B over several chunks a rank: a bubble smaller by their number, more in flight
  kZbH1,         // 1F1B whose weight gradients wait, and fill the gaps at the end; P microbatches live
  kZbV,          // two chunks a rank, down the ranks and up again; the memory of 1F1B's first rank on each
};

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int ranks = 1;         // P
  int chunks = 1;        // V: stages on a rank
  int microbatches = 1;  // M
  // Interleaved: microbatches that pass one chunk before the next chunk has its turn; 0: P.
  int group = 0;
  bool forward_only = false;  // evaluation, with the stages where the schedule puts them; any M

  // gpipe, 1f1b, interleaved: send an input gradient on before its weight gradient runs. The rank above waits
  // less: the bubble is (F + B) / (F + B + W) of the published one, for a stage's pending weight gradients in
  // memory. The zero-bubble forms always do.
  bool gradients_first = false;

  int stages() const { return ranks * chunks; }
};

// What the rest of the program must know of a schedule. A new one is an enumerator, a function that writes
// the order of a rank, and a row of the table in schedules.cpp: options, checks and stages follow from it.
struct ScheduleForm {
  PipelineSchedule schedule;
  const char* name;
  Program (*order)(const PipelineShape& shape, int rank);  // see compute_order
  int chunks = 1;                                          // on each rank; 0: as many as asked for, above one
  bool v_shaped = false;                 // the second chunks lie on the ranks from the last to the first
  bool defers_weight_gradients = false;  // always; others: see PipelineShape::gradients_first
  bool keeps_all = false;                // no backward before the last forward
};
std::span<const ScheduleForm> pipeline_schedules();
const ScheduleForm& form_of(PipelineSchedule schedule);
const char* name_of(PipelineSchedule schedule);
// As an option has its values.
std::vector<std::pair<std::string, PipelineSchedule>> schedule_choices();

// How the user calls the numbers of a shape.
struct PipelineOptionNames {
  std::string schedule = "--pipeline-schedule";
  std::string ranks = "--pipeline-model-parallel-size";
  std::string chunks = "--num-virtual-stages-per-pipeline-rank";
  std::string microbatches = "number of microbatches";
  std::string group = "--microbatch-group-size-per-virtual-pipeline-stage";
};

// What is wrong with a shape, one line each; the functions below take shapes with nothing wrong.
std::vector<std::string> problems_of(const PipelineShape& shape, const PipelineOptionNames& names = {});

// Whether weight gradients wait for their WeightGrad; in all others they run within Backward, which may then
// use what it has gathered.
bool defers_weight_gradients(const PipelineShape& shape);

// A channel has at most this many unfinished sends, so that what they hold is bounded: enough for no schedule
// to wait for more than its data.
int sends_in_flight(const PipelineShape& shape);

// Where stages are. zb-v: chunk 0 is stage r, chunk 1 is stage 2P - 1 - r; all others: chunk c is stage
// c P + r.
int stage_of(const PipelineShape& shape, int rank, int chunk);
int rank_of(const PipelineShape& shape, int stage);
int chunk_of(const PipelineShape& shape, int stage);

// Forward, Backward and WeightGrad of one rank, in order.
Program compute_order(const PipelineShape& shape, int rank);
// The same with its messages. A receive is started one use ahead, so that a message can travel while the rank
// computes; a send as soon as it can be (see gradients_first). Stages of one rank need no message between
// them.
Program make_program(const PipelineShape& shape, int rank);
std::vector<Program> make_programs(const PipelineShape& shape);

}  // namespace weft
