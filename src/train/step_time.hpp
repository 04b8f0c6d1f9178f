// The time of a step that is only planned: what its operations cost and what its messages carry, at the rates
// of a device.
//
// A rank's clock (StepClock) goes through the very step that the plan takes on meta memory. An operation
// takes Rates::seconds(). The rule for messages: those of one group run one after the other, each from when
// it is started (or its group is free) for Link::seconds(); where the rank waits for one that has not ended,
// its clock stands still until then, and that is exposed communication. What has ended by then was hidden
// under the operations in between. So overlap is just what the program does: nothing is assumed about it.
// Not counted: that messages take a part of a device's memory bandwidth and processors, that groups share
// links, what other ranks are late, and the time in which a host gives a GPU its work. The messages of a
// pipeline are left to its simulator, which plays all ranks with the times that the clocks give to the
// actions of each stage.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "core/lane.hpp"
#include "pipeline/simulate.hpp"
#include "train/engine.hpp"
#include "train/rates.hpp"

namespace weft {

// Where the time of a rank goes, in seconds. `bubble`: waiting for other ranks of the pipeline and for
// messages from them.
struct TimeSplit {
  double compute = 0, exposed = 0, optimizer = 0, bubble = 0;
  double total() const { return compute + exposed + optimizer + bubble; }
};

// Of one rank of a pipeline, without the others.
struct RankTime {
  struct Of {
    double compute = 0, exposed = 0;
    double total() const { return compute + exposed; }
  };
  // Of all microbatches together, by stage and by forward, backward and weight gradient.
  std::map<std::pair<int, ActionKind>, Of> actions;
  TimeSplit outside;           // of every action: before the first, after the last
  double largest_message = 0;  // of the pipeline, in bytes
};

class StepClock final : public DeviceTools, public PlannedMessages {
 public:
  // For a rank of this layout.
  StepClock(const Rates& rates, std::int64_t head_size, const Layout& layout, int rank);

  // A step of this many microbatches begins. Of messages of the step before that go on, the rest is waited
  // for.
  void begin_step(std::int64_t microbatches);
  // An action begins; null: what follows is outside of all.
  void begin_action(const Action* action);
  // What has passed since begin_step, as it is of a step of `microbatches`: every one but the first takes as
  // long as the mean of those that were played.
  RankTime of_step(std::int64_t microbatches) const;

  void trace(bool on) override { tracing_ = on; }
  std::size_t begin_traced(TracedOperation what, Stream on) override;
  void end_traced(std::size_t, Stream) override {}
  std::unique_ptr<RecordedWork> record(const std::function<void()>&) override {
    fail("nothing is recorded here");
  }
  std::vector<TracedOperation> traced() override { return {}; }
  std::size_t started(const std::string& group, std::uint64_t bytes) override;
  void waited(std::size_t number) override;

 private:
  void pass(double seconds, bool optimizer);

  const Rates& rates_;
  std::int64_t head_size_;
  std::map<std::string, Link> links_;  // of groups; none of the pipeline's channels
  std::map<std::string, double> free_;
  std::vector<double> ends_;  // of messages, by number
  double clock_ = 0;
  std::int64_t microbatches_ = 0;
  const Action* action_ = nullptr;
  RankTime first_, others_;  // of the first microbatch, and with all outside; of the others
};

struct StepTime {
  TimeSplit split;     // of the rank that ends last
  double seconds = 0;  // of a step
  double tokens_per_second = 0;
  double flops_per_device = 0;  // a second, by flops_per_token()
  double mfu = 0;               // of Rates::peak; 0: not known
  double message = 0;           // seconds of a message between stages
};
// `ranks`: by pipeline rank. Their pipeline is played with the times of each stage's actions.
StepTime step_time(const EngineOptions& options, const Rates& rates, const std::vector<RankTime>& ranks,
                   std::int64_t microbatches);

// The same pipeline with few rounds of microbatches: what is in flight grows no more, and each further round
// takes the same time.
PipelineShape steady(PipelineShape shape, int rounds);
// When each rank ends, of a step of all microbatches, from a few rounds that are played.
std::vector<double> pipeline_ends(const PipelineShape& shape, const SimulationInput& input);

}  // namespace weft
