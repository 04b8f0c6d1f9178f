// weft schedule
#include <fmt/core.h>

#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "core/check.hpp"
#include "io/atomic_file.hpp"
#include "pipeline/print.hpp"
#include "pipeline/schedules.hpp"
#include "pipeline/simulate.hpp"

namespace weft {
namespace {

const PipelineOptionNames kNames = {.schedule = "--schedule",
                                    .ranks = "--pipeline",
                                    .chunks = "--virtual",
                                    .microbatches = "--microbatches",
                                    .group = "--group"};

struct ScheduleOptions {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::int64_t ranks = 4, chunks = 1, microbatches = 8, group = 0;
  bool gradients_first = false, forward_only = false, timeline = true, programs = true;
  StageCost cost;
  double message = 0;
  Channels channels = Channels::kPerEdge;
  std::string svg;
};

void declare(OptionSet& options, ScheduleOptions& o) {
  constexpr Integers kCount = {1, 65536};
  options.topic("schedule");
  options.choice("schedule", o.schedule, schedule_choices(), "order of the microbatches");
  options.integer("pipeline", o.ranks, kCount, "ranks of the pipeline");
  options.integer("virtual", o.chunks, kCount, "model chunks on each rank (zb-v: always 2)");
  options.integer("microbatches", o.microbatches, kCount, "microbatches of a step");
  options.integer("group", o.group, {0, 65536}, "interleaved: microbatches in a group; 0: as many as ranks");
  options.flag("gradients-first", o.gradients_first,
               "send an input gradient on before its weight gradient runs (the zero-bubble forms always do)");
  options.flag("forward-only", o.forward_only, "evaluation: no backward");
  options.topic("times");
  options.real("forward", o.cost.forward, Reals::non_negative(), "time of a chunk's forward");
  options.real("backward", o.cost.backward, Reals::non_negative(), "time of a chunk's input gradient");
  options.real("weight-grad", o.cost.weight_grad, Reals::non_negative(), "time of a chunk's weight gradient");
  options.real("message", o.message, Reals::non_negative(), "time of a message between ranks");
  options.choice(
      "channels", o.channels,
      {{"edge", Channels::kPerEdge}, {"direction", Channels::kPerDirection}, {"single", Channels::kSingle}},
      "communicators of a rank: one for each stage edge and direction (what training uses), one for "
      "each direction, one for all");
  options.topic("output");
  options.flag("programs", o.programs, "print the program of each rank");
  options.flag("timeline", o.timeline, "print the timeline");
  options.text("svg", o.svg, "FILE", "draw the timeline into this file");
}

PipelineShape shape_of(const ScheduleOptions& o, bool chunks_given) {
  const int fixed = form_of(o.schedule).chunks;
  return {.schedule = o.schedule,
          .ranks = static_cast<int>(o.ranks),
          .chunks = fixed > 0 && !chunks_given ? fixed : static_cast<int>(o.chunks),
          .microbatches = static_cast<int>(o.microbatches),
          .group = static_cast<int>(o.group),
          .forward_only = o.forward_only,
          .gradients_first = o.gradients_first};
}

std::string stages_of(const PipelineShape& shape, int rank) {
  std::string text;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    text += (text.empty() ? "" : ",") + std::to_string(stage_of(shape, rank, chunk));
  }
  return text;
}

void print_results(const PipelineShape& shape, const std::vector<Program>& programs,
                   const SimulationResult& result, const ScheduleOptions& o) {
  print(
      fmt::format("schedule={}\nranks={}\nstages={}\nmicrobatches={}\nmakespan={:g}\nbubble={:.6g}\n"
                  "device_bubble={:.6g}\n",
                  name_of(shape.schedule), shape.ranks, shape.stages(), shape.microbatches, result.makespan,
                  result.bubble(), result.device_bubble()));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const RankResult& r = result.ranks[static_cast<std::size_t>(rank)];
    print(
        fmt::format("rank={} stages={} busy={:g} idle={:g} peak_activations={} peak_pending_weight_grads={} "
                    "peak_live={}\n",
                    rank, stages_of(shape, rank), r.busy, result.makespan - r.busy, r.peak_in_flight,
                    r.peak_pending, r.peak_live));
  }
  if (o.programs) {
    print("\n");
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      print(fmt::format("rank {}: {}\n", rank, to_string(programs[rank])));
    }
  }
  if (o.timeline) print("\n" + draw_text(programs, result));
}

}  // namespace

int run_schedule(Args args) {
  ScheduleOptions o;
  OptionSet options("weft schedule",
                    "The program of each rank of a pipeline, and what it costs with these times: F forward, "
                    "B input gradient, "
                    "W weight gradient; 2F0 is stage 2, microbatch 0; S sends, R receives. bubble: idle time "
                    "of the whole step "
                    "over the busy time of a rank; device_bubble: between the first and last action of a "
                    "rank, the worst one. "
                    "Peaks count chunks x microbatches: peak_activations from F to B, "
                    "peak_pending_weight_grads from B to W.");
  declare(options, o);
  const auto check = [&] {
    const PipelineShape shape = shape_of(o, options.given("virtual"));
    std::vector<std::string> problems = problems_of(shape, kNames);
    constexpr std::int64_t kMost = 1 << 20;
    if (o.ranks * o.chunks > kMost / o.microbatches) {
      problems.push_back(fmt::format("--pipeline {} x --virtual {} x --microbatches {} is more than {}",
                                     o.ranks, o.chunks, o.microbatches, kMost));
    }
    return problems;
  };
  if (answered(options, options.parse(args, check))) return 0;

  if (!o.svg.empty()) check_output("--svg", o.svg);
  const PipelineShape shape = shape_of(o, options.given("virtual"));
  const std::vector<Program> programs = make_programs(shape);
  const SimulationResult result =
      simulate(programs, {.stages = {o.cost}, .message = o.message, .channels = o.channels});
  if (!result.complete()) {
    std::string text = "deadlock";
    for (const std::string& fault : result.faults) text += "\n" + fault;
    throw Error(text);
  }
  print_results(shape, programs, result, o);
  if (!o.svg.empty()) {
    const std::string title =
        fmt::format("{}: {} ranks, {} stages, {} microbatches, bubble {:.1f} %", name_of(shape.schedule),
                    shape.ranks, shape.stages(), shape.microbatches, 100 * result.bubble());
    write_file(o.svg, draw_svg(programs, result, title));
  }
  return 0;
}

}  // namespace weft
