#include "train/score.hpp"

#include <algorithm>

#include "comm/local/launcher.hpp"
#include "core/log.hpp"
#include "interop/huggingface.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"
#include "mesh/mesh.hpp"
#include "ops/elementwise.hpp"
#include "train/engine.hpp"
#include "train/given_batches.hpp"
#include "train/plan.hpp"
#include "train/precision.hpp"
#include "train/run_checkpoint.hpp"

namespace weft {
namespace {

// Owns the host memory of a result that outlives the ranks' arenas.
struct HostTensor {
  std::vector<float> values;
  Shape shape;
  Tensor view() { return Tensor::borrow(values.data(), DType::kF32, shape); }
};

HostTensor host_zeros(const Shape& shape) {
  return {std::vector<float>(static_cast<std::size_t>(shape.elems())), shape};
}

// Everything the ranks share; rank 0 alone writes the results.
struct Score {
  const ScoreOptions& options;
  const GivenRows& rows;
  EngineOptions engine;
  MemoryPlan plan;
  BatchShape shape;
  HostTensor logits;                        // [B, S, V]
  std::map<std::string, HostTensor> grads;  // canonical name -> full gradient
  ScoreResult result;
};

// Row r of [s, b, V] -> row of the sample in [B, S, V].
void store_logits(Lane& lane, Score& score, const Tensor& logits, const std::vector<std::int64_t>& samples) {
  const std::int64_t vocabulary = logits.columns();
  const std::int64_t b = logits.dim(1);
  const Tensor out = score.logits.view();
  for (std::int64_t j = 0; j < b; ++j) {
    const std::int64_t sample = samples[static_cast<std::size_t>(j)];
    if (sample == kNoSample) continue;
    for (std::int64_t i = 0; i < logits.dim(0); ++i) {
      ops::copy(lane, logits.slice(i, 1).view({b, vocabulary}).slice(j, 1),
                out.slice(sample, 1).view({logits.dim(0), vocabulary}).slice(i, 1));
    }
  }
}

// Gathers every logical tensor's gradient over tp and puts it together on rank 0.
void store_gradients(Lane& lane, Score& score, const Groups& groups, Engine& engine) {
  for (const ParamBuffer::Slot& slot : engine.buffer().slots()) {
    for (const LogicalTensor& part : slot.param->parts()) {
      const Tensor local = slot.param->part_of(slot.param->main_grad(), part);
      const std::int64_t n = groups.tp.size();
      // Copied so that strided or shared memory never takes part in a collective.
      const Tensor own = lane.alloc(local.dtype(), local.shape(), "gathered gradient");
      ops::copy(lane, local, own);
      const Tensor all = groups.tp.all_gather(lane, own).wait(lane);
      if (groups.world.rank() != 0) continue;
      HostTensor& full = score.grads.try_emplace(part.name, host_zeros(part.global)).first->second;
      if (part.cut < 0) {
        ops::copy(lane, local, full.view());
        continue;
      }
      for (std::int64_t r = 0; r < n; ++r) {
        const std::int64_t begin = r * part.count;
        const std::int64_t count = std::clamp<std::int64_t>(part.global[part.cut] - begin, 0, part.count);
        if (count == 0) continue;
        const Tensor from = all.slice(r * local.dim(0), local.dim(0));
        if (part.cut == 0) {
          ops::copy(lane, from.slice(0, count), full.view().slice(begin, count));
        } else {
          ops::copy(lane, from.slice_columns(0, count), full.view().slice_columns(begin, count));
        }
      }
    }
  }
}

void score_rank(Score& score, Communicator& world) {
  const Mesh mesh({.tp = static_cast<int>(score.options.parallel.tensor_model_parallel_size),
                   .dp = static_cast<int>(data_parallel_size(score.options.parallel))},
                  world.rank());
  const auto dp = world.split(mesh.coordinate(Axis::kTp), mesh.coordinate(Axis::kDp), "dp");
  const auto tp = world.split(mesh.coordinate(Axis::kDp), mesh.coordinate(Axis::kTp), "tp");
  const std::unique_ptr<Arena> arena = Arena::host(score.plan.arena);
  Workers workers(threads_per_rank(0, world.size()));
  Lane lane{*arena, workers, {}};
  const Groups groups{world, *dp, *tp};
  Engine engine(lane, groups, score.engine);
  load_weights(score.options.load, lane, engine);

  const std::unique_ptr<SampleReader> reader = score.rows.reader();
  const int dp_rank = mesh.coordinate(Axis::kDp);
  const MicrobatchSource source = [&](std::int64_t index, Batch& out) {
    reader->load(score.shape, 0, index, dp_rank, out);
  };
  Batch batch;
  for (std::int64_t m = 0; m < score.shape.microbatches(); ++m) {
    source(m, batch);
    const Tensor logits = engine.logits(batch);
    const Tensor all = dp->all_gather(lane, logits).wait(lane);
    if (world.rank() != 0) continue;
    for (int r = 0; r < dp->size(); ++r) {
      store_logits(lane, score, all.slice(r * logits.dim(0), logits.dim(0)),
                   microbatch_samples(score.shape, 0, m, r));
    }
  }
  Engine::LossSum sum;
  if (score.options.grads) {
    sum = engine.gradients(score.shape.microbatches(), source);
    store_gradients(lane, score, groups, engine);
  } else {
    sum = engine.evaluate(score.shape.microbatches(), source);
  }
  if (world.rank() == 0)
    score.result = {sum.sum / static_cast<double>(std::max<std::int64_t>(sum.tokens, 1)), sum.tokens};
}

void write_result(Score& score) {
  float loss = static_cast<float>(score.result.loss);
  std::vector<std::pair<std::string, HostTensor>> grads;
  if (score.options.grads) {
    // Under the names and layouts of the Hugging Face family.
    const TensorMap map = huggingface_map(score.engine.model);
    assemble(
        map, DType::kF32, [&](const std::string& name) { return score.grads.at(name).view(); },
        [&](const ForeignTensor& foreign, const Tensor& full) {
          const std::span<const float> values = full.values<float>();
          grads.emplace_back("grad." + foreign.name,
                             HostTensor{{values.begin(), values.end()}, foreign.shape});
        });
  }
  std::vector<std::pair<std::string, Tensor>> tensors{{"logits", score.logits.view()},
                                                      {"loss", Tensor::borrow(&loss, DType::kF32, {1})}};
  for (auto& [name, tensor] : grads) tensors.emplace_back(name, tensor.view());
  write_safetensors(score.options.out, tensors);
}

}  // namespace

ScoreResult run_score(const ScoreOptions& options) {
  check_output("--out", options.out, {options.tokens});
  EngineOptions engine;
  engine.model = resolved(model_config_of(options.load));
  engine.dtype = parse_dtype(options.dtype);
  engine.training = false;
  const GivenRows rows(options.tokens, engine.model.vocab_size);
  engine.sequence_length = rows.sequence_length();
  engine.micro_batch = options.micro_batch_size;
  std::vector<std::string> problems = problems_of(engine.model);
  if (engine.model.position_embedding == PositionEmbedding::kLearnedAbsolute &&
      engine.sequence_length > engine.model.max_position_embeddings) {
    problems.push_back(fmt::format("{}: sequences of {} tokens, but {} has {} learned positions",
                                   options.tokens, engine.sequence_length, options.load,
                                   engine.model.max_position_embeddings));
  }
  const int tp_size = static_cast<int>(options.parallel.tensor_model_parallel_size);
  for (const std::string& p : validate(evaluation_spec(engine.model), tp_size)) problems.push_back(p);
  if (!problems.empty()) throw ConfigError(std::move(problems));

  const auto dp_size = data_parallel_size(options.parallel);
  const int world_ranks = static_cast<int>(world_size(options.parallel));
  const auto world = planned_communicator("world", 0, world_ranks);
  const auto dp = planned_communicator("dp", 0, static_cast<int>(dp_size));
  const auto tp = planned_communicator("tp", 0, tp_size);
  Score score{options,
              rows,
              engine,
              plan_scoring(engine, {*world, *dp, *tp}, options.grads, threads_per_rank(0, world_ranks)),
              {.global_batch = rows.samples(), .micro_batch = options.micro_batch_size, .dp_size = dp_size},
              host_zeros({rows.samples(), rows.sequence_length(), engine.model.vocab_size}),
              {},
              {}};
  log_info("{}", to_string(score.plan));
  check_memory(score.plan, world_ranks);
  run_local_ranks({.ranks = world_ranks}, [&](Communicator& group) { score_rank(score, group); });
  write_result(score);
  return score.result;
}

}  // namespace weft
