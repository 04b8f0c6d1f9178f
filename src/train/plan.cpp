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

}  // namespace

MemoryPlan plan_training(const EngineOptions& options, const Groups& groups, std::int64_t microbatches,
                         bool evaluation, int threads) {
  const std::unique_ptr<Arena> arena = Arena::meta();
  Workers workers(threads);
  Lane lane{*arena, workers, {}};
  Engine engine(lane, groups, options);
  const std::size_t resident = arena->in_use();
  const MicrobatchSource none;
  engine.train_step({.microbatches = std::min<std::int64_t>(microbatches, 2), .source = none});
  if (evaluation) engine.evaluate(1, none);
  return describe(engine, *arena, resident);
}

MemoryPlan plan_scoring(const EngineOptions& options, const Groups& groups, bool gradients, int threads) {
  const std::unique_ptr<Arena> arena = Arena::meta();
  Workers workers(threads);
  Lane lane{*arena, workers, {}};
  Engine engine(lane, groups, options);
  const std::size_t resident = arena->in_use();
  const MicrobatchSource none;
  const Tensor logits = engine.logits({});
  groups.dp.all_gather(lane, logits).wait(lane);
  engine.evaluate(1, none);
  if (gradients) engine.gradients(2, none);
  return describe(engine, *arena, resident);
}

void check_memory(const MemoryPlan& plan, std::int64_t ranks, std::size_t beside) {
  const double needed =
      static_cast<double>(plan.arena) * static_cast<double>(ranks) + static_cast<double>(beside);
  const auto available = static_cast<double>(available_memory());
  if (needed <= available) return;
  config_fail(
      "not enough memory: {} rank{} and what they share need {:.1f} MiB, and {:.1f} MiB are available here; "
      "{}. "
      "Take a smaller model, --micro-batch-size or --seq-length, or fewer --ranks",
      ranks, ranks == 1 ? "" : "s", needed / (1 << 20), available / (1 << 20), to_string(plan));
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

}  // namespace weft
