#include "train/score.hpp"

#include <algorithm>
#include <cstring>

#include "core/log.hpp"
#include "interop/huggingface.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"
#include "ops/elementwise.hpp"
#include "train/context_parallel.hpp"
#include "train/engine.hpp"
#include "train/given_batches.hpp"
#include "train/launch.hpp"
#include "train/plan.hpp"
#include "train/precision.hpp"
#include "train/rank_device.hpp"
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
  std::vector<MemoryPlan> plans;
  const Launch& launch;
  int ranks_on_machine;
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

void score_rank(Score& score, Communicator& world) {
  const Layout& layout = score.engine.layout;
  const auto stage = static_cast<std::size_t>(Mesh(layout.mesh, world.rank()).coordinate(Axis::kPp));
  Workers workers(threads_per_rank(0, score.ranks_on_machine));
  RankDevice device(score.engine.device, score.launch.local_rank(world.rank()),
                    need_of(score.engine, score.plans[stage]), workers);
  Lane& lane = device.lane();
  const Groups groups(device.world(world, score.engine, score.shape.microbatches(), true,
                                   score.options.parallel.distributed_timeout_seconds),
                      layout);
  Engine engine(lane, groups, score.engine);
  load_weights(score.options.load, lane, engine);

  const std::unique_ptr<SampleReader> reader = score.rows.reader();
  const int dp_rank = groups.mesh().coordinate(Axis::kDp);
  const MicrobatchSource source = [&](std::int64_t index, Batch& out) {
    reader->load(score.shape, 0, index, dp_rank, out);
  };
  Batch batch;
  for (std::int64_t m = 0; m < score.shape.microbatches(); ++m) {
    source(m, batch);
    const Tensor all = engine.logits(batch);
    if (!all.defined()) continue;
    const std::int64_t rows = score.engine.sequence_length;
    for (int r = 0; r < score.shape.dp_size; ++r) {
      store_logits(lane, score, all.slice(r * rows, rows), microbatch_samples(score.shape, 0, m, r));
    }
  }
  Engine::LossSum sum;
  if (score.options.grads) {
    sum = engine.gradients(score.shape.microbatches(), source);
    engine.for_each_gradient([&](const LogicalTensor& tensor, const Tensor& gradient) {
      ops::copy(lane, gradient,
                score.grads.emplace(tensor.name, host_zeros(tensor.global)).first->second.view());
    });
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
    HostTensor none;  // of what is not trained: states of routers
    const auto gradient = [&](const std::string& name) {
      const auto found = score.grads.find(name);
      if (found != score.grads.end()) return found->second.view();
      none = host_zeros(map.shape_of(name));
      return none.view();
    };
    assemble(map, DType::kF32, gradient, [&](const ForeignTensor& foreign, const Tensor& full) {
      if (!score.grads.contains(foreign.parts.front().canonical)) return;
      const std::span<const float> values = full.values<float>();
      grads.emplace_back("grad." + foreign.name, HostTensor{{values.begin(), values.end()}, foreign.shape});
    });
  }
  std::vector<std::pair<std::string, Tensor>> tensors{{"logits", score.logits.view()},
                                                      {"loss", Tensor::borrow(&loss, DType::kF32, {1})}};
  for (auto& [name, tensor] : grads) tensors.emplace_back(name, tensor.view());
  write_safetensors(score.options.out, tensors);
}

}  // namespace

ScoreResult run_score(const ScoreOptions& given) {
  ScoreOptions options = given;
  const Launch launch(options.parallel);
  check_output("--out", options.out, {options.tokens, options.load});
  EngineOptions engine;
  engine.model = resolved(model_config_of(options.load));
  engine.device = choose_device(options.parallel, launch.ranks_on_machine());
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
  for (const std::string& p :
       validate(evaluation_spec(engine.model), tp_size, expert_sizes(options.parallel)))
    problems.push_back(p);
  TrainConfig run;
  run.parallel = options.parallel;
  run.model = engine.model;
  run.data.seq_length = engine.sequence_length;
  run.training.micro_batch_size = options.micro_batch_size;
  // A forward pass takes any number of microbatches; only a backward pass must suit the schedule.
  if (options.grads) run.training.global_batch_size = rows.samples();
  for (std::string p : layout_problems_of(run)) {
    if (const std::size_t at = p.find("--global-batch-size"); at != std::string::npos) {
      p.replace(at, std::strlen("--global-batch-size"), "rows of --tokens");
    }
    problems.push_back(std::move(p));
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));

  engine.layout = layout_of(run);
  engine.sequence_parallel = options.parallel.sequence_parallel && tp_size > 1;
  engine.sequence_order = sequence_order(options.parallel);
  engine.context_methods = context_methods(options.parallel);
  const int here = launch.ranks_on_machine();
  const BatchShape shape{.global_batch = rows.samples(),
                         .micro_batch = options.micro_batch_size,
                         .dp_size = engine.layout.mesh.dp};
  std::vector<MemoryPlan> plans =
      plan_scoring(engine, shape.microbatches(), options.grads, threads_per_rank(0, here));
  const Shape logits{rows.samples(), rows.sequence_length(), engine.model.vocab_size};
  Score score{options, rows, engine, std::move(plans), launch, here, shape, host_zeros(logits), {}, {}};
  if (launch.first()) log_info("{}", to_string(score.plans));
  if (engine.device == DeviceKind::kCpu) check_memory(score.plans, here);
  launch.run({.timeout_seconds = options.parallel.distributed_timeout_seconds},
             [&](Communicator& group) { score_rank(score, group); });
  score.result.reports = launch.first();
  if (launch.first()) write_result(score);
  return score.result;
}

}  // namespace weft
