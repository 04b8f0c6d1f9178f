#include "train/plan.hpp"

#include <algorithm>

#include "core/memory.hpp"

namespace weft {
namespace {

std::size_t bytes_of(const ParamBuffer& buffer, DType dtype) {
  return static_cast<std::size_t>(buffer.elems()) * weft::bytes_of(dtype);
}

MemoryPlan describe(Engine& engine, const Arena& arena, std::size_t resident) {
  const ParamBuffer& buffer = engine.buffer();
  MemoryPlan plan;
  plan.weights = bytes_of(buffer, engine.options().dtype);
  plan.gradients = buffer.gradients().bytes();
  for (const ParamBuffer::Slot& slot : buffer.slots()) plan.parameters += slot.elems;
  if (engine.optimizer() != nullptr) {
    if (engine.optimizer()->master().raw() != buffer.weights().raw())
      plan.optimizer += engine.optimizer()->master().bytes();
    for (const Optimizer::State& state : engine.optimizer()->state()) plan.optimizer += state.flat.bytes();
  }
  plan.tables = resident - std::min(resident, plan.weights + plan.gradients + plan.optimizer);
  plan.activations = engine.activation_bytes();
  plan.arena = arena.high_water();
  return plan;
}

// The number of microbatches that behaves, for the arena, as these do. On one rank each leaves the arena as
// it found it. In a pipeline their lives overlap, holes come up in new places, and the peak may still grow
// after hundreds of microbatches: all of them count.
std::int64_t enough_microbatches(const PipelineShape& pipeline, std::int64_t microbatches) {
  const bool one_by_one = pipeline.stages() == 1 && pipeline.schedule != PipelineSchedule::kGpipe;
  return one_by_one ? std::min<std::int64_t>(microbatches, 2) : microbatches;
}

// Builds the engine of one rank of each stage on meta memory and lets `body` use it.
template <class Body>
std::vector<MemoryPlan> plan_stages(const EngineOptions& options, int threads, const Body& body) {
  std::vector<MemoryPlan> plans;
  for (int pp = 0; pp < options.layout.mesh.pp; ++pp) {
    const Mesh first(options.layout.mesh, 0);
    const Groups groups =
        Groups::planned(options.layout, first.group({Axis::kPp})[static_cast<std::size_t>(pp)]);
    const std::unique_ptr<Arena> arena = Arena::meta();
    Workers workers(threads);
    Lane lane{*arena, workers, {}};
    Engine engine(lane, groups, options);
    const std::size_t resident = arena->in_use();
    body(engine);
    plans.push_back(describe(engine, *arena, resident));
    engine.flush();
  }
  return plans;
}

}  // namespace

std::vector<MemoryPlan> plan_training(const EngineOptions& options, std::int64_t microbatches,
                                      bool evaluation, int threads) {
  return plan_stages(options, threads, [&](Engine& engine) {
    const MicrobatchSource none;
    const std::int64_t few = enough_microbatches(options.layout.pipeline, microbatches);
    engine.train_step({.microbatches = few, .source = none});
    if (options.overlap_param_gather) {
      engine.train_step({.microbatches = few, .source = none});  // begins while weights are gathered
    }
    if (evaluation) engine.evaluate(2 * options.layout.pipeline.ranks, none);
  });
}

std::vector<MemoryPlan> plan_scoring(const EngineOptions& options, bool gradients, int threads) {
  return plan_stages(options, threads, [&](Engine& engine) {
    const MicrobatchSource none;
    engine.logits({});
    engine.evaluate(2 * options.layout.pipeline.ranks, none);
    if (!gradients) return;
    engine.gradients(2 * options.layout.pipeline.stages(), none);
    engine.for_each_gradient([](const LogicalTensor&, const Tensor&) {});
  });
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

void check_memory(const ModelConfig& model, std::int64_t bytes, std::int64_t copies) {
  const auto count = parameter_count(model);
  const double needed = static_cast<double>(count) * static_cast<double>(bytes) * static_cast<double>(copies);
  const auto available = static_cast<double>(available_memory());
  if (needed <= available) return;
  const double layers =
      static_cast<double>(count - model.vocab_size * model.hidden_size * (model.tied ? 1 : 2));
  config_fail(
      "not enough memory: {} parameters ({:.3g} of them in {} layers, {:.3g} in each embedding of {} x {}) x "
      "{} "
      "bytes of weights, gradients and optimizer states x {} copies need {:.1f} MiB before any activation, "
      "and "
      "{:.1f} MiB are available here. Take a smaller model or fewer --ranks",
      count, layers, model.num_layers, static_cast<double>(model.vocab_size * model.hidden_size),
      model.vocab_size, model.hidden_size, bytes, copies, needed / (1 << 20), available / (1 << 20));
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
