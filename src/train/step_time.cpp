#include "train/step_time.hpp"

#include <algorithm>

#include "mesh/mesh.hpp"

namespace weft {
namespace {

bool is_update(const std::string& name) {
  return name == "adamw" || name == "sgd" || name == "sums_of_squares";
}

// The slowest link between neighbours of a pipeline.
Link channel_link(const Rates& rates, const std::vector<int>& pipeline) {
  Link slowest = rates.node;
  for (std::size_t i = 0; i + 1 < pipeline.size(); ++i) {
    const Link& link = rates.link_among(std::vector<int>{pipeline[i], pipeline[i + 1]});
    if (link.bytes_per_second < slowest.bytes_per_second) slowest = link;
  }
  return slowest;
}

double action_seconds(const std::vector<RankTime>& ranks, int stage, ActionKind kind,
                      std::int64_t microbatches) {
  for (const RankTime& rank : ranks) {
    const auto found = rank.actions.find({stage, kind});
    if (found != rank.actions.end()) return found->second.total() / static_cast<double>(microbatches);
  }
  return 0;
}

}  // namespace

StepClock::StepClock(const Rates& rates, std::int64_t head_size, const Layout& layout, int rank)
    : rates_(rates), head_size_(head_size) {
  const Mesh mesh(layout.mesh, rank);
  const std::vector<int> pipeline = mesh.group({Axis::kPp});
  links_["tp"] = links_["kv_replicas"] = rates.link_among(mesh.group({Axis::kTp}));
  links_["dp"] = links_["dp-cp"] = rates.link_among(mesh.group({Axis::kDp, Axis::kCp}));
  links_["cp"] = links_["cp.a2a"] = links_["cp.p2p"] = rates.link_among(mesh.group({Axis::kCp}));
  links_["model"] = rates.link_among(mesh.group({Axis::kTp, Axis::kPp}));
  links_["pp"] = links_["embedding"] = rates.link_among(pipeline);
  links_["world"] = rates.link_among(std::vector<int>{0, layout.world() - 1});
}

void StepClock::begin_step(std::int64_t microbatches) {
  first_ = others_ = RankTime{};
  microbatches_ = microbatches;
  action_ = nullptr;
}

void StepClock::begin_action(const Action* action) {
  action_ = action != nullptr && is_compute(action->kind) ? action : nullptr;
}

void StepClock::pass(double seconds, bool optimizer) {
  clock_ += seconds;
  if (action_ == nullptr) {
    (optimizer ? first_.outside.optimizer : first_.outside.compute) += seconds;
  } else {
    RankTime& of = action_->microbatch == 0 ? first_ : others_;
    of.actions[{action_->stage, action_->kind}].compute += seconds;
  }
}

std::size_t StepClock::begin_traced(TracedOperation what, Stream) {
  if (what.row == TraceRow::kCompute) pass(rates_.seconds(what.cost, head_size_), is_update(what.cost.name));
  return 0;
}

std::size_t StepClock::started(const std::string& group, std::uint64_t bytes) {
  const auto link = links_.find(group);
  double end = 0;  // messages of a pipeline are not waited for here
  if (link != links_.end()) {
    double& free = free_[group];
    end = free = std::max(free, clock_) + link->second.seconds(static_cast<double>(bytes));
  } else {
    first_.largest_message = std::max(first_.largest_message, static_cast<double>(bytes));
  }
  ends_.push_back(end);
  return ends_.size() - 1;
}

void StepClock::waited(std::size_t number) {
  const double seconds = ends_[number] - clock_;
  if (seconds <= 0) return;
  clock_ += seconds;
  if (action_ == nullptr) {
    first_.outside.exposed += seconds;
  } else {
    RankTime& of = action_->microbatch == 0 ? first_ : others_;
    of.actions[{action_->stage, action_->kind}].exposed += seconds;
  }
}

RankTime StepClock::of_step(std::int64_t microbatches) const {
  RankTime all = first_;
  if (microbatches_ < 2) {
    for (auto& [key, of] : all.actions) {
      of.compute *= static_cast<double>(microbatches);
      of.exposed *= static_cast<double>(microbatches);
    }
    return all;
  }
  const double times = static_cast<double>(microbatches - 1) / static_cast<double>(microbatches_ - 1);
  for (const auto& [key, of] : others_.actions) {
    all.actions[key].compute += times * of.compute;
    all.actions[key].exposed += times * of.exposed;
  }
  return all;
}

PipelineShape steady(PipelineShape shape, int rounds) {
  const int group = shape.group > 0 ? shape.group : shape.ranks;
  shape.microbatches = std::min(shape.microbatches, rounds * group + shape.microbatches % group);
  return shape;
}

std::vector<double> pipeline_ends(const PipelineShape& shape, const SimulationInput& input) {
  const PipelineShape few = steady(shape, 8), more = steady(shape, 9);
  const SimulationResult played = simulate(make_programs(few), input);
  std::vector<double> ends;
  for (const RankResult& rank : played.ranks) ends.push_back(rank.end());
  if (more.microbatches > few.microbatches) {
    const double round = simulate(make_programs(more), input).makespan - played.makespan;
    const int rounds = (shape.microbatches - few.microbatches) / (more.microbatches - few.microbatches);
    for (double& end : ends) end += round * rounds;
  }
  return ends;
}

StepTime step_time(const EngineOptions& options, const Rates& rates, const std::vector<RankTime>& ranks,
                   std::int64_t microbatches) {
  StepTime time;
  PipelineShape shape = options.layout.pipeline;
  shape.microbatches = static_cast<int>(microbatches);
  const std::vector<int> pipeline = Mesh(options.layout.mesh, 0).group({Axis::kPp});
  SimulationInput input{.stages = {}, .sends_in_flight = sends_in_flight(shape)};
  for (int stage = 0; stage < shape.stages(); ++stage) {
    input.stages.push_back(
        {.forward = action_seconds(ranks, stage, ActionKind::kForward, microbatches),
         .backward = action_seconds(ranks, stage, ActionKind::kBackward, microbatches),
         .weight_grad = action_seconds(ranks, stage, ActionKind::kWeightGrad, microbatches)});
  }
  double largest = 0;
  for (const RankTime& rank : ranks) largest = std::max(largest, rank.largest_message);
  if (largest > 0) time.message = channel_link(rates, pipeline).seconds(largest);
  input.message = time.message;
  // Each rank goes on with what is outside of the pipeline when it has ended there: the last one decides.
  const std::vector<double> ends = pipeline_ends(shape, input);
  for (std::size_t pp = 0; pp < ranks.size(); ++pp) {
    const double end = ends[pp] + ranks[pp].outside.total();
    if (end <= time.seconds) continue;
    time.seconds = end;
    time.split = ranks[pp].outside;
    for (const auto& [key, of] : ranks[pp].actions) {
      time.split.compute += of.compute;
      time.split.exposed += of.exposed;
    }
    time.split.bubble = std::max(0.0, end - time.split.total());
  }
  const double tokens = static_cast<double>(microbatches) * static_cast<double>(options.micro_batch) *
                        static_cast<double>(options.layout.mesh.dp) *
                        static_cast<double>(options.sequence_length);
  time.tokens_per_second = tokens / time.seconds;
  time.flops_per_device = time.tokens_per_second * flops_per_token(options.model, options.sequence_length) /
                          options.layout.world();
  if (rates.peak > 0) time.mfu = time.flops_per_device / rates.peak;
  return time;
}

}  // namespace weft
