#include "train/plan.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

#include "core/memory.hpp"
#include "train/freeze.hpp"

namespace weft {
namespace {

MemoryPlan describe(Engine& engine, const Arena& arena, std::size_t resident) {
  MemoryPlan plan;
  for (const auto& [buffer, optimizer, norm, replicas] : engine.partitions()) {
    plan.weights += buffer->weights().bytes();
    plan.gradients += buffer->gradients().bytes();
    for (const auto* slots : {&buffer->slots(), &buffer->frozen()}) {
      for (const ParamBuffer::Slot& slot : *slots) plan.parameters += slot.elems;
    }
    if (optimizer == nullptr) continue;
    if (optimizer->master().raw() != buffer->weights().raw()) plan.optimizer += optimizer->master().bytes();
    for (const Optimizer::State& state : optimizer->state()) plan.optimizer += state.flat.bytes();
  }
  plan.tables = resident - std::min(resident, plan.weights + plan.gradients + plan.optimizer);
  plan.chunk_activations = engine.chunk_activation_bytes();
  plan.activations =
      std::accumulate(plan.chunk_activations.begin(), plan.chunk_activations.end(), std::size_t{0});
  plan.arena = arena.high_water();
  return plan;
}

// Calls body(0) to body(count - 1), on the cores of this machine. Throws what the first of them threw.
void spread(int count, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  std::atomic<int> next = 0;
  const auto work = [&] {
    for (int i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        errors[static_cast<std::size_t>(i)] = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> helpers;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < std::min(count, cores); ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

double total(const RankTime& time) {
  double sum = time.outside.total();
  for (const auto& [key, of] : time.actions) sum += of.total();
  return sum;
}

// Context-parallel ranks see more or fewer keys. The first and the last one see fewest and most in contiguous
// order, and the earliest and the latest in zigzag order; those between are alike. Where all layers exchange
// heads all ranks are.
std::vector<int> different_cp_ranks(const EngineOptions& options) {
  const int cp = options.layout.mesh.cp;
  const std::vector<ContextMethod>& methods = options.context_methods;
  const bool alike =
      std::all_of(methods.begin(), methods.end(), [](ContextMethod m) { return m == ContextMethod::kA2a; });
  if (cp == 1 || alike) return {0};
  if (cp == 2) return {0, 1};
  return {0, cp / 2, cp - 1};
}

// Of `cp` ranks of each stage the memory of the one that needs most, and the time of the slowest. They send
// the same.
std::vector<StepPlan> most_of_each(std::vector<StepPlan> plans, std::size_t cp) {
  std::vector<StepPlan> most;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (i % cp == 0) {
      most.push_back(std::move(plans[i]));
      continue;
    }
    if (plans[i].memory.arena > most.back().memory.arena) most.back().memory = std::move(plans[i].memory);
    if (total(plans[i].time) > total(most.back().time)) most.back().time = std::move(plans[i].time);
  }
  return most;
}

// Builds the engines of different_cp_ranks() of each stage on meta memory and lets `body` use them; by stage.
template <class Body>
std::vector<StepPlan> plan_stages(const EngineOptions& options, int threads,
                                  const std::optional<Rates>& rates, const Body& body) {
  const Mesh mesh(options.layout.mesh, 0);
  const std::vector<int> of_cp = mesh.group({Axis::kCp}), different = different_cp_ranks(options);
  std::vector<int> ranks;
  for (const int first : mesh.group({Axis::kPp})) {
    for (const int cp : different) ranks.push_back(first + of_cp[static_cast<std::size_t>(cp)]);
  }
  std::vector<StepPlan> plans(ranks.size());
  spread(static_cast<int>(ranks.size()), [&](int number) {
    const auto i = static_cast<std::size_t>(number);
    std::unique_ptr<StepClock> clock;
    if (rates) {
      clock = std::make_unique<StepClock>(*rates, options.model.kv_channels, options.layout, ranks[i]);
    }
    const Groups groups = Groups::planned(options.layout, ranks[i], clock.get());
    const std::unique_ptr<Arena> arena = Arena::meta(options.device);
    Workers workers(threads);
    Lane lane{*arena, workers, {}, clock.get()};
    Engine engine(lane, groups, options);
    if (clock != nullptr) {
      clock->trace(true);
      engine.watch([&](const Action* action) { clock->begin_action(action); });
    }
    const std::size_t resident = arena->in_use();
    body(engine, groups, clock.get(), plans[i]);
    plans[i].memory = describe(engine, *arena, resident);
    engine.flush();
  });
  return most_of_each(std::move(plans), different.size());
}

std::vector<MemoryPlan> memory_of(std::vector<StepPlan> plans) {
  std::vector<MemoryPlan> memory;
  for (StepPlan& plan : plans) memory.push_back(std::move(plan.memory));
  return memory;
}

// What a step of `microbatches` sends.
Traffic traffic_of_step(Engine& engine, const Groups& groups, std::int64_t microbatches) {
  const Traffic before = bytes_sent(groups);
  const MicrobatchSource none;
  engine.train_step({.microbatches = microbatches, .source = none});
  Traffic sent = bytes_sent(groups);
  for (auto& [name, bytes] : sent) bytes -= before.at(name);
  return sent;
}

// The microbatches that a plan plays, of those of a pass. In a pipeline their lives overlap, holes come up in
// new places, and the peak may still grow after hundreds of them: all are played. Where each is done with
// before the next one begins, the arena is then as it was.
std::int64_t played(const PipelineShape& pipeline, std::int64_t microbatches) {
  const bool one_by_one = pipeline.stages() == 1 && !form_of(pipeline.schedule).keeps_all;
  return one_by_one ? std::min<std::int64_t>(microbatches, 2) : microbatches;
}

// Takes every kind of step of a run, and evaluates; what a step sends, and how long it takes.
void rehearse(Engine& engine, const Groups& groups, StepClock* clock, std::int64_t microbatches,
              bool evaluation, StepPlan& plan) {
  const EngineOptions& options = engine.options();
  const PipelineShape& pipeline = options.layout.pipeline;
  const std::int64_t count = played(pipeline, microbatches);
  if (clock != nullptr) clock->begin_step(count);
  Traffic& traffic = plan.traffic = traffic_of_step(engine, groups, count);
  // The next one begins while weights are gathered.
  if (options.overlap_param_gather) {
    if (clock != nullptr) clock->begin_step(count);
    traffic_of_step(engine, groups, count);
  }
  if (clock != nullptr) plan.time = clock->of_step(microbatches);
  const MicrobatchSource none;
  // A step has as many messages on their way, and what it saves beside: what an evaluation may need more is
  // inside a stage.
  if (evaluation) engine.evaluate(4, none);
  if (count == microbatches) return;
  // Beside what a step sends once, every microbatch sends the same.
  const Traffic fewer = traffic_of_step(engine, groups, count - 1);
  for (auto& [name, bytes] : traffic) {
    bytes += static_cast<std::uint64_t>(microbatches - count) * (bytes - fewer.at(name));
  }
}

// Ranks that hold the same weights: data- and context-parallel ones, or those with the same experts.
std::int64_t replicas(const ParallelConfig& parallel, bool of_expert = false) {
  if (of_expert) {
    const ExpertSizes sizes = expert_sizes(parallel);
    return world_size(parallel) / parallel.pipeline_model_parallel_size / (sizes.ep * sizes.etp);
  }
  return std::max<std::int64_t>(data_parallel_size(parallel), 1) * parallel.context_parallel_size;
}

std::int64_t bytes_of_weight(const TrainingConfig& t) {
  return t.bf16 || t.fp16 ? 2 : t.fp64 ? 8 : 4;
}

}  // namespace

Traffic bytes_sent(const Groups& groups) {
  const auto bytes_of = [](const Communicator* group) {
    return group != nullptr ? group->bytes_sent() : std::uint64_t{0};
  };
  Traffic sent{{"tp", groups.tp().bytes_sent()},
               {"dp", groups.dp_cp().bytes_sent()},
               {"cp", groups.cp().bytes_sent() + bytes_of(groups.a2a()) + bytes_of(groups.p2p())},
               {"pp activations", 0},
               {"pp gradients", 0},
               {"embedding", bytes_of(groups.embedding())},
               {"kv_replicas", bytes_of(groups.kv_replicas())},
               {"model", groups.model().bytes_sent()},
               {"tokens to experts", 0},
               {"edp", 0},
               {"routers", 0},
               {"world", groups.world().bytes_sent()}};
  if (const ExpertGroups* experts = groups.experts(); experts != nullptr) {
    sent["tokens to experts"] = experts->etp_ep->bytes_sent();
    sent["edp"] = experts->edp->bytes_sent();
    sent["routers"] = experts->tp_cp->bytes_sent();
    sent["model"] += experts->model->bytes_sent();
  }
  const std::vector<Communicator*> channels = groups.channels();
  for (std::size_t i = 0; i < channels.size(); ++i) {
    if (channels[i] == nullptr) continue;
    const bool gradient = static_cast<int>(i) == channel_of(static_cast<int>(i / 2), true);
    sent[gradient ? "pp gradients" : "pp activations"] += channels[i]->bytes_sent();
  }
  return sent;
}

std::uint64_t total(const Traffic& traffic) {
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : traffic) sum += bytes;
  return sum;
}

std::vector<StepPlan> plan_step(const EngineOptions& options, std::int64_t microbatches, bool evaluation,
                                int threads, const std::optional<Rates>& rates) {
  return plan_stages(options, threads, rates,
                     [&](Engine& engine, const Groups& groups, StepClock* clock, StepPlan& plan) {
                       rehearse(engine, groups, clock, microbatches, evaluation, plan);
                     });
}

std::vector<MemoryPlan> plan_training(const EngineOptions& options, std::int64_t microbatches,
                                      bool evaluation, int threads) {
  return memory_of(plan_step(options, microbatches, evaluation, threads));
}

std::vector<MemoryPlan> plan_scoring(const EngineOptions& options, std::int64_t microbatches, bool gradients,
                                     int threads) {
  const std::int64_t count = played(options.layout.pipeline, microbatches);
  return memory_of(
      plan_stages(options, threads, {}, [&](Engine& engine, const Groups&, StepClock*, StepPlan&) {
        const MicrobatchSource none;
        engine.logits({});
        if (gradients) {
          engine.gradients(count, none);
          engine.for_each_gradient([](const LogicalTensor&, const Tensor&) {});
        } else {
          engine.evaluate(count, none);
        }
      }));
}

void check_memory(const std::vector<MemoryPlan>& plans, std::int64_t ranks, std::size_t beside) {
  double needed = static_cast<double>(beside);
  for (const MemoryPlan& plan : plans) {
    needed +=
        static_cast<double>(plan.arena) * static_cast<double>(ranks) / static_cast<double>(plans.size());
  }
  const auto available = static_cast<double>(available_memory());
  if (needed <= available) return;
  config_fail(
      "not enough memory: {} rank{} and what they share need {:.1f} MiB, and {:.1f} MiB are available here; "
      "{}. "
      "Take a smaller model, --micro-batch-size or --seq-length, or fewer --ranks",
      ranks, ranks == 1 ? "" : "s", needed / (1 << 20), available / (1 << 20), to_string(plans));
}

std::int64_t bytes_of_frozen_parameter(const TrainConfig& config) {
  const TrainingConfig& t = config.training;
  return replicas(config.parallel) * bytes_of_weight(t);
}

std::int64_t bytes_of_parameter(const TrainConfig& config, bool of_expert) {
  const TrainingConfig& t = config.training;
  const OptimizerConfig& o = config.optimizer;
  const std::int64_t copies = replicas(config.parallel, of_expert);
  const bool cut = config.parallel.use_distributed_optimizer && copies > 1;
  const std::int64_t full = t.fp64 ? 8 : 4, weight = bytes_of_weight(t);
  // A master weight where the weight is something else, or lies in another order.
  const std::int64_t master = weight == full && !cut ? 0 : full;
  const std::int64_t states = o.optimizer == OptimizerConfig::Kind::kAdam ? 2 : o.sgd_momentum != 0 ? 1 : 0;
  return copies * (weight + full) + (cut ? 1 : copies) * (master + states * full);
}

void check_memory(const TrainConfig& config, std::int64_t ranks) {
  if (config.parallel.device == ParallelConfig::Device::kCuda) return;  // its arena is reserved in one piece
  const ModelConfig& model = config.model;
  const auto count = parameter_count(model);
  const std::int64_t bytes = bytes_of_parameter(config);
  const double here = static_cast<double>(ranks) / static_cast<double>(world_size(config.parallel));
  const std::int64_t frozen = frozen_parameters(model, config.training.freeze),
                     of_frozen = bytes_of_frozen_parameter(config);
  const std::int64_t experts = std::min(expert_parameter_count(model), count - frozen);
  const double needed =
      (static_cast<double>(count - frozen - experts) * static_cast<double>(bytes) +
       static_cast<double>(experts) * static_cast<double>(bytes_of_parameter(config, true)) +
       static_cast<double>(frozen) * static_cast<double>(of_frozen)) *
      here;
  const auto available = static_cast<double>(available_memory());
  if (needed <= available) return;
  const double layers =
      static_cast<double>(count - model.vocab_size * model.hidden_size * (model.tied ? 1 : 2));
  config_fail(
      "not enough memory: {} parameters ({:.3g} of them in {} layers, {:.3g} in each embedding of {} x {}) x "
      "{} bytes of weights, gradients and optimizer states on {} data-parallel ranks{} need {:.1f} MiB "
      "before "
      "any activation, and {:.1f} MiB are available here. Take a smaller model or fewer --ranks",
      count, layers, model.num_layers, static_cast<double>(model.vocab_size * model.hidden_size),
      model.vocab_size, model.hidden_size, bytes, replicas(config.parallel),
      frozen > 0 ? fmt::format(" ({} frozen ones x {} bytes)", frozen, of_frozen) : "", needed / (1 << 20),
      available / (1 << 20));
}

std::string to_string(const MemoryPlan& plan) {
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      "memory of each rank (MiB): weights {:.1f}, gradients {:.1f}, optimizer {:.1f}, activations of a "
      "microbatch {:.1f}, "
      "tables {:.1f}; peak {:.1f}",
      mib(plan.weights), mib(plan.gradients), mib(plan.optimizer), mib(plan.activations), mib(plan.tables),
      mib(plan.arena));
}

std::string to_string(const std::vector<MemoryPlan>& plans) {
  if (plans.size() == 1) return to_string(plans.front());
  std::string text;
  for (std::size_t pp = 0; pp < plans.size(); ++pp) {
    text += fmt::format("{}pipeline rank {}: {}", pp == 0 ? "" : "\n", pp, to_string(plans[pp]));
  }
  return text;
}

}  // namespace weft
