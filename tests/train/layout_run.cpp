#include "layout_run.hpp"

#include <fmt/core.h>

#include <cmath>
#include <mutex>

#include "comm/local/launcher.hpp"
#include "ops/elementwise.hpp"

namespace weft::testing {
namespace {

constexpr std::int64_t kSequence = 12;
constexpr std::int64_t kBatch = 12;  // samples of a step and unit of accumulation: 1, 2, 3 and 4 divide it

const char* schedule_name(ParallelConfig::Schedule schedule) {
  switch (schedule) {
    case ParallelConfig::Schedule::kGpipe:
      return "gpipe";
    case ParallelConfig::Schedule::k1F1B:
      return "1f1b";
    case ParallelConfig::Schedule::kInterleaved:
      return "interleaved";
    case ParallelConfig::Schedule::kZbH1:
      return "zb-h1";
    case ParallelConfig::Schedule::kZbV:
      return "zb-v";
  }
  return "?";
}

ModelConfig model_of(const LayoutCase& layout) {
  ModelConfig c;
  c.num_layers = layout.layers;
  c.hidden_size = 24;
  c.num_attention_heads = 12;
  c.ffn_hidden_size = 36;
  c.vocab_size = 41;  // odd: padding differs from layout to layout
  c.max_position_embeddings = kSequence;
  c.make_vocab_size_divisible_by = 4;
  if (layout.model == "gpt2") {
    c.position_embedding = PositionEmbedding::kLearnedAbsolute;
    c.normalization = Normalization::kLayerNorm;
    c.tied = true;
    c.hidden_dropout = 0.1;
    c.attention_dropout = 0.1;
  } else {
    c.num_query_groups = layout.groups;
    c.position_embedding = PositionEmbedding::kRope;
    c.normalization = Normalization::kRmsNorm;
    c.gated = true;
    c.activation = ops::Activation::kSilu;
    c.add_bias_linear = false;
    c.tied = false;
    c.hidden_dropout = c.attention_dropout = 0;
  }
  if (layout.tied_given) c.tied = layout.tied;
  return resolved(c);
}

// Sample `id` of a data set that every layout sees alike.
void fill_row(std::int64_t id, bool ragged, Batch& out) {
  const RandomKey key = RandomKey{911}.with(static_cast<std::uint64_t>(id));
  for (std::int64_t i = 0; i < kSequence; ++i) {
    const Philox bits = philox(key, static_cast<std::uint64_t>(i));
    out.tokens.push_back(static_cast<std::int32_t>(bits[0] % 41));
    const bool masked = ragged && (id % 5 == 3 || i >= kSequence - id % 7);
    out.labels.push_back(masked ? -100 : static_cast<std::int32_t>(bits[1] % 41));
    out.target_tokens += masked ? 0 : 1;
  }
  out.sample_ids.push_back(id);
  ++out.rows;
}

Gradients weights_of(Lane& lane, Engine& engine, bool gradients) {
  Gradients all;
  const auto keep = [&](const LogicalTensor& tensor, const Tensor& whole) {
    all[tensor.name] = to_doubles(whole);
    static_cast<void>(lane);
  };
  if (gradients) {
    engine.for_each_gradient(keep);
  } else {
    engine.for_each_weight(keep);
  }
  return all;
}

}  // namespace

std::string LayoutCase::name() const {
  std::string text =
      fmt::format("{}{} tp{} pp{} dp{} {}", model, tied_given ? (tied ? " tied" : " untied") : "", tp, pp, dp,
                  schedule_name(schedule));
  const auto add = [&]<class... Args>(bool said, fmt::format_string<Args...> words, Args&&... args) {
    if (said) text += fmt::format(words, std::forward<Args>(args)...);
  };
  add(chunks > 1, "x{}", chunks);
  add(!stages.empty(), " {}", stages);
  add(sequence_parallel, " sp");
  add(tensor_parallel_chunks > 1, " tp-overlap{}", tensor_parallel_chunks);
  text += distributed ? " zero1" : " ddp";
  add(bucket > 0, " bucket{}", bucket);
  add(!overlap, " no-overlap");
  add(accumulation > 1, " acc{}", accumulation);
  add(ragged, " ragged");
  add(dtype != DType::kF32, " {}", name_of(dtype));
  add(layers != 4, " L{}", layers);
  add(groups != 12, " groups{}", groups);
  add(recompute.kind != RecomputeSpec::Kind::kNone, " recompute{}.{}{}{}{}", static_cast<int>(recompute.kind),
      recompute.layers, recompute.core_attention ? " attention" : "", recompute.mlp ? " mlp" : "",
      recompute.norms ? " norms" : "");
  return text;
}

LayoutResult run_layout(const LayoutCase& layout, int steps) {
  ParallelConfig parallel;
  parallel.ranks = layout.ranks();
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.pipeline_model_parallel_size = layout.pp;
  parallel.pipeline_schedule = layout.schedule;
  parallel.num_virtual_stages_per_pipeline_rank = layout.chunks;
  parallel.pipeline_model_parallel_layout = layout.stages;
  EngineOptions options;
  options.model = model_of(layout);
  options.dtype = layout.dtype;
  options.micro_batch = 1;
  options.sequence_length = kSequence;
  options.optimizer.optimizer = OptimizerConfig::Kind::kSgd;
  options.optimizer.sgd_momentum = 0;
  options.optimizer.clip_grad = 1.0;
  options.layout = layout_of(parallel, options.model);
  options.sequence_parallel = layout.sequence_parallel;
  options.distributed_optimizer = layout.distributed;
  options.overlap_grad_reduce = options.overlap_param_gather = options.overlap_p2p = layout.overlap;
  options.bucket_elems = layout.bucket > 0 ? layout.bucket : 2000;
  options.tensor_parallel_chunks = layout.tensor_parallel_chunks;
  options.recompute = layout.recompute;
  options.label_smoothing = 0.1;
  options.z_loss = 1e-2;

  LayoutResult result;
  std::mutex mutex;
  run_local_ranks({.ranks = layout.ranks(), .timeout = std::chrono::seconds(60)}, [&](Communicator& world) {
    TestRank rank(std::size_t{1} << 25);
    const Groups groups(world, options.layout);
    Engine engine(rank.lane(), groups, options);
    engine.initialize();
    const std::int64_t batch = kBatch * layout.accumulation;
    const std::int64_t microbatches = batch / layout.dp;
    LayoutResult mine;
    for (int step = 0; step <= steps; ++step) {
      const std::int64_t first = (step > 0 ? step - 1 : 0) * batch;
      const MicrobatchSource source = [&](std::int64_t index, Batch& out) {
        out = Batch{};
        out.sequence_length = kSequence;
        fill_row(first + index * layout.dp + groups.mesh().coordinate(Axis::kDp), layout.ragged, out);
      };
      if (step == 0) {  // gradients alone
        engine.gradients(microbatches, source);
        mine.gradients = weights_of(rank.lane(), engine, true);
        mine.weights.push_back(weights_of(rank.lane(), engine, false));
        continue;
      }
      const StepResult r = engine.train_step({.iteration = step,
                                              .microbatches = microbatches,
                                              .source = source,
                                              .lr = 0.5,
                                              .weight_decay = 0.01});
      mine.losses.push_back(r.loss);
      mine.norms.push_back(r.grad_norm);
      mine.weights.push_back(weights_of(rank.lane(), engine, false));
    }
    engine.flush();
    if (world.rank() != 0) return;
    const std::lock_guard lock(mutex);
    result = std::move(mine);
  });
  return result;
}

double worst_difference(const LayoutResult& a, const LayoutResult& b, double tolerance, std::string* what) {
  double worst = 0;
  const auto look = [&](double ratio, const std::string& name) {
    if (ratio <= worst && !std::isnan(ratio)) return;
    worst = std::isnan(ratio) ? 1e30 : ratio;
    *what = name;
  };
  if (a.losses.size() != b.losses.size() || a.weights.size() != b.weights.size()) {
    *what = "number of steps";
    return 1e30;
  }
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    look(std::abs(a.losses[i] - b.losses[i]) / (tolerance * std::abs(b.losses[i])),
         fmt::format("loss {}", i));
    look(std::abs(a.norms[i] - b.norms[i]) / (tolerance * std::abs(b.norms[i])), fmt::format("norm {}", i));
  }
  std::string name;
  look(gradient_difference(a.gradients, b.gradients, &name) / tolerance, "gradient of " + name);
  // Weights: the update so far is the scale.
  const auto updates = [](const LayoutResult& r, std::size_t i) {
    Gradients d = r.weights[i];
    for (auto& [tensor, values] : d) {
      const std::vector<double>& start = r.weights[0].at(tensor);
      for (std::size_t j = 0; j < values.size(); ++j) values[j] -= start[j];
    }
    return d;
  };
  if (a.weights[0] != b.weights[0]) look(1e30, "initial weights");
  for (std::size_t i = 1; i < a.weights.size(); ++i) {
    look(gradient_difference(updates(a, i), updates(b, i), &name) / tolerance,
         fmt::format("weights after step {}: {}", i, name));
  }
  return worst;
}

bool same_bits(const LayoutResult& a, const LayoutResult& b, std::string* what) {
  if (a.losses != b.losses) *what = "losses";
  if (a.norms != b.norms) *what = "norms";
  if (a.gradients != b.gradients) *what = "gradients";
  if (a.weights != b.weights) *what = "weights";
  return what->empty();
}

}  // namespace weft::testing
