// Messages between pipeline stages (--overlap-p2p-communication), in steps of the engine. The link's
// bandwidth is chosen so that forward and backward of a microbatch on a stage take 1.5 times as long as its
// activation and its gradient. T_none is the same step on a link of no latency and endless bandwidth: a
// pipeline without messages would have no order.
//
// The bound is the simulator's, with B = 2 F. 1F1B keeps P - rank microbatches in flight, just enough for
// messages that take no time: rank 0 waits for (P - 1) messages of every P microbatches, whenever they are
// started. Interleaved starts 2 (P - rank - 1) + (V - 1) P chunks first, and has room.
#include <algorithm>
#include <utility>

#include "engine_run.hpp"
#include "pipeline/simulate.hpp"

namespace weft::overlap {
namespace {

constexpr double kRatio = 1.5;

// Receives as the executor starts them without overlap: when their data is needed.
std::vector<Program> without_overlap(std::vector<Program> programs) {
  for (Program& program : programs) {
    Program late, receives;
    for (const Action& action : program) {
      if (is_receive(action.kind)) {
        receives.push_back(action);
        continue;
      }
      const auto mine = std::find_if(receives.begin(), receives.end(), [&](const Action& receive) {
        return action.kind != ActionKind::kWeightGrad && is_compute(action.kind) &&
               is_gradient(action.kind) == is_gradient(receive.kind) && action.stage == receive.stage &&
               action.microbatch == receive.microbatch;
      });
      if (mine != receives.end()) {
        late.push_back(*mine);
        receives.erase(mine);
      }
      late.push_back(action);
    }
    program = std::move(late);
  }
  return programs;
}

// Of a step, in units of a stage's forward pass.
double simulated(const PipelineShape& shape, double message, bool overlap) {
  const std::vector<Program> programs = make_programs(shape);
  // Weight gradients run within Backward.
  const SimulationInput input{.stages = {{.forward = 1, .backward = 2, .weight_grad = 0}},
                              .message = message,
                              .sends_in_flight = sends_in_flight(shape)};
  const SimulationResult result = simulate(overlap ? programs : without_overlap(programs), input);
  WEFT_CHECK(result.complete(), "the pipeline stops: {}", result.faults.front());
  return result.makespan;
}

void measure(const PipelineShape& shape, const Settings& settings) {
  EngineRun run;
  run.threads = settings.threads;
  run.steps = 1;
  run.microbatches = shape.microbatches;
  EngineOptions& o = run.options;
  o.model = settings.quick ? small_llama(shape.stages(), 64) : small_llama(shape.stages(), 256);
  o.sequence_length = settings.quick ? 32 : 64;
  ParallelConfig parallel;
  parallel.ranks = shape.ranks;
  parallel.pipeline_model_parallel_size = shape.ranks;
  parallel.pipeline_schedule = shape.schedule;
  parallel.num_virtual_stages_per_pipeline_rank = shape.chunks;
  o.layout = layout_of(parallel, o.model);

  const auto seconds_of = [&](const LinkModel& model, bool overlap) {
    run.link = model;
    run.options.overlap_p2p = overlap;
    return run_engine(run).step;
  };
  const LinkModel free{.queued = true};
  // Forward of a stage: the message is to take as long (F + B = 3 F, and two messages).
  const double units = simulated(shape, 0, true);
  const double forward =
      take_turns(settings.quick ? 1 : 3, [&](Form) { return seconds_of(free, true); }).none / units;
  LinkModel model = link();
  const double latency = std::chrono::duration<double>(model.latency).count();
  const double message = std::max(3 * forward / (2 * kRatio), 1.5 * latency);
  const auto bytes = static_cast<double>(o.sequence_length * o.micro_batch * o.model.hidden_size * 4);
  model.bytes_per_second = bytes / (message - latency);

  const Times times = take_turns(settings.rounds, [&](Form form) {
    return seconds_of(form == Form::kNone ? free : model, form != Form::kOff);
  });
  const double measured_forward = times.none / units, relative = message / measured_forward;
  const Times bound{
      .none = units, .off = simulated(shape, relative, false), .on = simulated(shape, relative, true)};
  const double microbatches = shape.microbatches * shape.chunks;
  print({.what = fmt::format("pipeline {}{}, m {}, {:.0f} MB/s", name_of(shape.schedule),
                             shape.chunks > 1 ? fmt::format(" x{}", shape.chunks) : "", shape.microbatches,
                             model.bytes_per_second / 1e6),
         .ranks = shape.ranks,
         .times = times,
         .compute = microbatches * 3 * measured_forward,
         .communication = microbatches * 2 * message,
         .bound = bound.hidden()});
}

}  // namespace

void measure_pipeline(const Settings& settings) {
  for (const int ranks : {2, 4}) {
    for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved}) {
      const bool interleaved = schedule == PipelineSchedule::kInterleaved;
      PipelineShape shape{.schedule = schedule, .ranks = ranks, .chunks = interleaved ? 2 : 1};
      // Filling and draining the pipeline cannot be hidden: many microbatches make it small.
      shape.microbatches = settings.quick ? 8 : interleaved ? 24 * ranks : 32;
      measure(shape, settings);
    }
  }
}

}  // namespace weft::overlap
