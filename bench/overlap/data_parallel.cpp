// Gradient reduction (--overlap-grad-reduce) and the parameter gather of the distributed optimizer
// (--overlap-param-gather), in steps of the engine on two ranks. The sequence length is found at which the
// pass that is to hide them (backward; forward) takes 1.5 times as long. T_none is the same step whose
// reductions, or gathers, move nothing and take no time; everything else is on the link in all three forms.
//
// What cannot be hidden: the last bucket of gradients, which is full when the backward pass is over; the
// weights of the embedding and of the first layer, without which the forward pass cannot begin.
#include <algorithm>

#include "engine_run.hpp"

namespace weft::overlap {
namespace {

constexpr int kRanks = 2;
constexpr double kRatio = 1.5;

struct Part {
  bool gathers = false;
  const char* name;
};

EngineRun run_of(const Part& part, const Settings& settings, std::int64_t sequence) {
  EngineRun run;
  run.link = link();
  run.threads = settings.threads;
  run.steps = settings.quick ? 1 : 3;
  EngineOptions& o = run.options;
  o.model = settings.quick ? small_llama(8, 64) : small_llama(24, 256);
  ParallelConfig parallel;
  parallel.ranks = kRanks;
  o.layout = layout_of(parallel, o.model);
  o.sequence_length = sequence;
  o.distributed_optimizer = part.gathers;
  o.overlap_grad_reduce = o.overlap_param_gather = true;
  // A third of a layer: small, so that little is left when the last gradient has come, but each takes a
  // multiple of the link's latency.
  o.bucket_elems = parameter_count(o.model) / o.model.num_layers / 3;
  return run;
}

void set(EngineRun& run, const Part& part, Form form) {
  (part.gathers ? run.options.overlap_param_gather : run.options.overlap_grad_reduce) = form != Form::kOff;
  (part.gathers ? run.without_gathers : run.without_reductions) = form == Form::kNone;
}

double link_seconds(const Traffic::Started& operation) {
  const LinkModel model = link();
  return std::chrono::duration<double>(model.latency).count() +
         static_cast<double>(operation.sent_bytes) / model.bytes_per_second;
}

struct Cost {
  double compute = 0, communication = 0, bound = 0;
};

// From a run without the communication: when each reduction could start, and how long each would take.
Cost cost_of_reductions(const EngineTimes& times) {
  Cost cost{.compute = times.last_reduction - times.forward};
  const std::vector<Traffic::Started>& all = times.traffic.reductions;
  double end = 0;
  for (const Traffic::Started& reduction : all) {
    const double start = std::chrono::duration<double>(reduction.when - all.front().when).count();
    end = std::max(end, start) + link_seconds(reduction);
    cost.communication += link_seconds(reduction);
  }
  const double last_start = std::chrono::duration<double>(all.back().when - all.front().when).count();
  cost.bound = 1 - (end - last_start) / cost.communication;
  return cost;
}

// The layers wait for their weights; the time of the forward pass is spread evenly over them.
Cost cost_of_gathers(const EngineTimes& times) {
  Cost cost{.compute = times.forward};
  std::vector<double> arrived;
  for (const Traffic::Started& gather : times.traffic.gathers) {
    arrived.push_back(cost.communication += link_seconds(gather));
  }
  const auto layers = static_cast<double>(times.buckets.size() - 2);  // but embedding and output
  double now = 0;
  for (std::size_t block = 0; block < times.buckets.size(); ++block) {
    for (const int bucket : times.buckets[block]) {
      now = std::max(now, arrived[static_cast<std::size_t>(bucket)]);
    }
    if (block > 0 && block + 1 < times.buckets.size()) now += times.forward / layers;
  }
  cost.bound = 1 - (now - times.forward) / cost.communication;
  return cost;
}

Cost cost_of(const Part& part, const Settings& settings, std::int64_t sequence) {
  EngineRun run = run_of(part, settings, sequence);
  run.forward = true;
  set(run, part, Form::kNone);
  const EngineTimes times = run_engine(run);
  return part.gathers ? cost_of_gathers(times) : cost_of_reductions(times);
}

std::int64_t sequence_for_ratio(const Part& part, const Settings& settings) {
  std::int64_t sequence = 128;
  for (int i = 0; i < 3; ++i) {
    const Cost cost = cost_of(part, settings, sequence);
    const double ratio = cost.compute / cost.communication;
    if (std::abs(ratio / kRatio - 1) < 0.05) break;
    const auto next = static_cast<std::int64_t>(static_cast<double>(sequence) * kRatio / ratio);
    // By a factor of 3 at most: one measurement may be far out.
    sequence = std::clamp<std::int64_t>((next + 4) / 8 * 8, std::max<std::int64_t>(sequence / 24 * 8, 16),
                                        std::min<std::int64_t>(3 * sequence, 1024));
  }
  return sequence;
}

void measure(const Part& part, const Settings& settings) {
  const std::int64_t sequence = sequence_for_ratio(part, settings);
  const Times times = take_turns(settings.rounds, [&](Form form) {
    EngineRun run = run_of(part, settings, sequence);
    set(run, part, form);
    return run_engine(run).step;
  });
  const Cost cost = cost_of(part, settings, sequence);
  print({.what = fmt::format("{}, s {}", part.name, sequence),
         .ranks = kRanks,
         .times = times,
         .compute = cost.compute,
         .communication = cost.communication,
         .bound = cost.bound});
}

}  // namespace

void measure_data_parallel(const Settings& settings) {
  measure({.gathers = false, .name = "gradient reduction"}, settings);
  measure({.gathers = true, .name = "parameter gather"}, settings);
}

}  // namespace weft::overlap
