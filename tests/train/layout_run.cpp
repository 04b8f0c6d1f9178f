#include "layout_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "comm/local/launcher.hpp"
#include "ops/elementwise.hpp"
#include "train/context_parallel.hpp"

namespace weft::testing {
namespace {

constexpr std::int64_t kBatch = 12;  // samples of a step and unit of accumulation: 1, 2, 3 and 4 divide it

ModelConfig model_of(const LayoutCase& layout) {
  ModelConfig c;
  c.num_layers = layout.layers;
  c.hidden_size = layout.hidden;
  c.num_attention_heads = layout.heads;
  c.ffn_hidden_size = layout.hidden * 3 / 2;
  c.vocab_size = layout.vocabulary;  // odd: padding differs from layout to layout
  c.max_position_embeddings = layout.sequence + layout.unused_positions;
  c.sliding_window = layout.window;
  // Where nothing is rotated, the gradient of the keys' bias is zero but for rounding: it cannot be compared.
  c.qk_layernorm = layout.head_norms && layout.model != "gpt2";
  c.make_vocab_size_divisible_by = 4;
  if (layout.model == "gpt2") {
    c.position_embedding = PositionEmbedding::kLearnedAbsolute;
    c.normalization = Normalization::kLayerNorm;
    c.tied = true;
    c.hidden_dropout = c.attention_dropout = layout.dropout ? 0.1 : 0;
  } else {
    c.num_query_groups = layout.groups;
    if (layout.latent) {
      c.num_query_groups = 0;
      c.latent = small_latent();
    }
    c.position_embedding = PositionEmbedding::kRope;
    c.normalization = Normalization::kRmsNorm;
    c.gated = true;
    c.activation = ops::Activation::kSilu;
    c.add_bias_linear = false;
    c.tied = false;
    c.hidden_dropout = c.attention_dropout = 0;
  }
  if (!layout.moe.empty()) c.moe = layout.moe.front();
  if (layout.gathers_tokens) c.moe.dispatcher = TokenDispatcher::kAllGather;
  if (layout.tied_given) c.tied = layout.tied;
  return resolved(c);
}

std::int64_t batch_of(const LayoutCase& layout) {
  return layout.global_batch > 0 ? layout.global_batch : kBatch * layout.accumulation;
}

Gradients values_of(Engine& engine, bool gradients) {
  Gradients all;
  const auto keep = [&](const LogicalTensor& tensor, const Tensor& whole) {
    all[tensor.name] = to_doubles(whole);
  };
  if (gradients) {
    engine.for_each_gradient(keep);
  } else {
    engine.for_each_weight(keep);
  }
  return all;
}

// Whether x has the same bits on every rank of the group. Collective.
bool alike(Lane& lane, Communicator& group, const Tensor& x) {
  const Tensor first = lane.alloc(x.dtype(), x.shape(), "first rank's");
  ops::copy(lane, x, first);
  group.broadcast(lane, first, 0).wait(lane);
  const Tensor own = lane.alloc(x.dtype(), x.shape(), "own, packed");
  ops::copy(lane, x, own);
  return std::memcmp(first.raw(), own.raw(), own.bytes()) == 0;
}

// The first tensor of this rank that a replica of it contradicts. Collective.
std::string unlike_replicas(Lane& lane, const Groups& groups, Engine& engine) {
  std::string found;
  const auto look = [&](Communicator* group, const Tensor& x, const std::string& name) {
    if (group == nullptr || group->size() == 1) return;
    if (!alike(lane, *group, x) && found.empty()) found = fmt::format("{} over {}", name, group->name());
  };
  for (const auto& param : engine.params().all()) {
    if (param->owner() != nullptr) continue;
    const bool of_experts = param->traits().expert;
    look(of_experts ? groups.experts()->edp.get() : &groups.dp_cp(), param->weight(), param->name());
    if (of_experts) continue;
    for (const LogicalTensor& part : param->parts()) {
      const Tensor piece = param->part_of(param->weight(), part);
      if (part.cut < 0) look(&groups.tp(), piece, part.name);
      if (part.replicas > 1) look(groups.kv_replicas(), piece, part.name);
    }
  }
  for (const auto& param : engine.params().all()) {
    if (param->owner() == nullptr && param->traits().own_bucket) {
      look(groups.embedding(), param->weight(), param->name());
    }
  }
  return found;
}

}  // namespace

LayoutCase one_rank_of(const LayoutCase& layout) {
  LayoutCase one = layout;
  one.tp = one.pp = one.dp = one.cp = one.chunks = one.ep = 1;
  one.etp = 0;
  one.gathers_tokens = false;
  for (MoeConfig& experts : one.moe) experts.pad_to_capacity = false;
  one.head_exchange = 0;
  one.cp_methods = {"p2p"};
  one.order = ParallelConfig::SequenceOrder::kAuto;
  one.schedule = ParallelConfig::Schedule::k1F1B;
  one.sequence_parallel = one.distributed = false;
  one.bucket = 0;
  one.overlap = true;
  one.stages.clear();
  one.tensor_parallel_chunks = 1;
  one.recompute = {};
  one.fused = false;
  one.global_batch = batch_of(layout);
  one.accumulation = 1;
  return one;
}

std::vector<LayoutCase> with_every_cp_method(const LayoutCase& layout) {
  if (layout.cp == 1) return {layout};
  using enum ParallelConfig::SequenceOrder;
  std::vector<LayoutCase> all;
  for (const char* method : {"p2p", "all_gather", "a2a", "a2a+p2p"}) {
    for (const auto order : {kZigzag, kContiguous}) {
      LayoutCase one = layout;
      one.cp_methods = {method};
      one.order = order;
      if (method == std::string("a2a+p2p")) one.head_exchange = 2;
      if (context_problems(config_of(one)).empty()) all.push_back(one);
    }
  }
  return all;
}

const LayoutResult& reference_of(const LayoutCase& layout, int steps) {
  static std::map<std::string, LayoutResult> known;
  const LayoutCase one = one_rank_of(layout);
  const std::string name = fmt::format("{} {} steps", one.name(), steps);
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  return known.emplace(name, run_layout(one, steps)).first->second;
}

std::string LayoutCase::name() const {
  std::string text =
      fmt::format("{}{} tp{} pp{} dp{} {}", model, tied_given ? (tied ? " tied" : " untied") : "", tp, pp, dp,
                  name_of(schedule));
  const auto add = [&]<class... Args>(bool said, fmt::format_string<Args...> words, Args&&... args) {
    if (said) text += fmt::format(words, std::forward<Args>(args)...);
  };
  add(cp > 1, " cp{} {}{}{}", cp, fmt::join(cp_methods, ","),
      head_exchange > 0 ? fmt::format(" exchange{}", head_exchange) : "",
      order == ParallelConfig::SequenceOrder::kAuto         ? ""
      : order == ParallelConfig::SequenceOrder::kContiguous ? " contiguous"
                                                            : " zigzag");
  add(chunks > 1, "x{}", chunks);
  add(!stages.empty(), " {}", stages);
  add(sequence_parallel, " sp");
  add(latent, " latent");
  add(head_norms, " head-norms");
  for (const MoeConfig& e : moe) {
    add(true, " experts{} top{} aux{} z{} {}{}{}{}{}", e.num_experts, e.topk, e.aux_loss_coeff,
        e.z_loss_coeff, e.load_balancing == LoadBalancing::kSequenceAuxLoss ? "sequence" : "batch",
        e.expert_bias ? " bias" : "", e.shared_expert_size > 0 ? " shared" : "",
        e.expert_capacity_factor > 0 ? fmt::format(" capacity{}", e.expert_capacity_factor) : "",
        e.token_drop_policy == TokenDropPolicy::kPosition ? " position" : "");
    add(e.pad_to_capacity, " padded");
    add(e.num_groups > 0, " groups-of-experts{}", e.num_groups);
    add(e.layer_freq != "1", " {}", e.layer_freq);
  }
  add(ep > 1, " ep{}", ep);
  add(etp > 0, " etp{}", etp);
  add(gathers_tokens, " allgather");
  add(tensor_parallel_chunks > 1, " tp-overlap{}", tensor_parallel_chunks);
  text += distributed ? " zero1" : " ddp";
  add(bucket > 0, " bucket{}", bucket);
  add(!overlap, " no-overlap");
  add(accumulation > 1, " acc{}", accumulation);
  add(ragged, " ragged");
  add(dtype != DType::kF32, " {}", name_of(dtype));
  add(layers != 4, " L{}", layers);
  add(groups != heads, " groups{}", groups);
  add(heads != 12 || hidden != 24 || vocabulary != 41, " h{}x{} v{}", hidden, heads, vocabulary);
  add(global_batch > 0, " batch{}", global_batch);
  add(only_target >= 0, " target{}", only_target);
  add(recompute.kind != RecomputeSpec::Kind::kNone, " recompute{}.{}{}{}{}", static_cast<int>(recompute.kind),
      recompute.layers, recompute.core_attention ? " attention" : "", recompute.mlp ? " mlp" : "",
      recompute.norms ? " norms" : "");
  for (const std::string& pattern : freeze) text += " -" + pattern;
  add(fused, " fused");
  add(unused_positions > 0, " unused{}", unused_positions);
  add(sequence != 12, " s{}", sequence);
  add(window > 0, " window{}", window);
  add(documents, " documents");
  add(!targets.empty(), " targets{}", fmt::join(targets, ","));
  add(micro_batch > 1, " micro{}", micro_batch);
  add(!per_token_loss, " mean-of-means");
  add(!dropout, " no-dropout");
  return text;
}

TrainConfig config_of(const LayoutCase& layout) {
  TrainConfig config;
  config.model = model_of(layout);
  config.data.seq_length = layout.sequence;
  ParallelConfig& parallel = config.parallel;
  parallel.ranks = layout.ranks();
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.pipeline_model_parallel_size = layout.pp;
  parallel.pipeline_schedule = layout.schedule;
  parallel.num_virtual_stages_per_pipeline_rank = layout.chunks;
  parallel.pipeline_model_parallel_layout = layout.stages;
  parallel.sequence_parallel = layout.sequence_parallel;
  parallel.context_parallel_size = layout.cp;
  parallel.expert_model_parallel_size = layout.ep;
  parallel.expert_tensor_parallel_size = layout.etp;
  parallel.cp_comm_type = layout.cp_methods;
  parallel.cp_sequence_order = layout.order;
  if (layout.head_exchange > 0) {
    parallel.hierarchical_context_parallel_sizes = {std::to_string(layout.head_exchange),
                                                    std::to_string(layout.cp / layout.head_exchange)};
  }
  return config;
}

void fill_row(std::int64_t id, const LayoutCase& layout, Batch& out) {
  const std::int64_t length = layout.sequence;
  out.sequence_length = length;
  const RandomKey key = RandomKey{911}.with(static_cast<std::uint64_t>(id));
  const auto vocabulary = static_cast<std::uint32_t>(layout.vocabulary);
  std::vector<std::int32_t> borders{0, static_cast<std::int32_t>(length)};
  if (layout.documents) {  // the last one is of one token in every fourth sequence, the second in others
    const std::int64_t second = 1 + id * 5 % (length - 1);
    const std::int64_t third = id % 4 == 0 ? length - 1 : std::min(second + id % 3, length);
    for (const std::int64_t begin : {std::max(second, third), std::min(second, third)}) {
      borders.insert(borders.begin() + 1, static_cast<std::int32_t>(begin));
    }
  }
  for (std::int64_t i = 0; i < length; ++i) {
    const Philox bits = philox(key, static_cast<std::uint64_t>(i));
    out.tokens.push_back(static_cast<std::int32_t>(bits[0] % vocabulary));
    bool masked = layout.ragged && (id % 5 == 3 || i >= length - id % 7);
    if (layout.only_target >= 0) masked = id % batch_of(layout) * length + i != layout.only_target;
    if (!layout.targets.empty()) {
      masked = std::find(layout.targets.begin(), layout.targets.end(), i) == layout.targets.end();
    }
    out.labels.push_back(masked ? -100 : static_cast<std::int32_t>(bits[1] % vocabulary));
    out.target_tokens += masked ? 0 : 1;
    const auto next = std::upper_bound(borders.begin(), borders.end(), i);
    out.position_ids.push_back(static_cast<std::int32_t>(i) - *(next - 1));
  }
  out.borders.push_back(std::move(borders));
  out.sample_ids.push_back(id);
  ++out.rows;
}

Layout layout_of(const LayoutCase& layout) {
  return weft::layout_of(config_of(layout));
}

EngineOptions engine_options(const LayoutCase& layout) {
  EngineOptions options;
  options.model = model_of(layout);
  options.dtype = layout.dtype;
  options.micro_batch = layout.micro_batch;
  options.sequence_length = layout.sequence;
  options.per_token_loss = layout.per_token_loss;
  options.optimizer.optimizer = OptimizerConfig::Kind::kSgd;
  options.optimizer.sgd_momentum = 0;
  options.optimizer.clip_grad = 1.0;
  options.layout = layout_of(layout);
  options.sequence_parallel = layout.sequence_parallel;
  options.sequence_order = sequence_order(config_of(layout).parallel);
  options.context_methods = context_methods(config_of(layout).parallel);
  options.document_positions = options.documents_apart = layout.documents;
  options.distributed_optimizer = layout.distributed;
  options.overlap_grad_reduce = options.overlap_param_gather = options.overlap_p2p = layout.overlap;
  options.bucket_elems = layout.bucket > 0 ? layout.bucket : 2000;
  options.tensor_parallel_chunks = layout.tensor_parallel_chunks;
  options.recompute = layout.recompute;
  options.fused = layout.fused;
  options.freeze = layout.freeze;
  options.label_smoothing = 0.1;
  options.z_loss = 1e-2;
  return options;
}

LayoutResult run_layout_rank(const LayoutCase& layout, Communicator& real, int steps, const RunHooks& hooks) {
  const EngineOptions options = engine_options(layout);
  TestRank rank(std::size_t{1} << 25);
  const std::unique_ptr<Communicator> wrapped = hooks.wrap ? hooks.wrap(real, options.layout) : nullptr;
  Communicator& world = wrapped ? *wrapped : real;
  const auto training = [&](const auto& body) {
    if (hooks.phase) hooks.phase(world, true);
    body();
    if (hooks.phase) hooks.phase(world, false);
  };
  const Groups groups(world, options.layout);
  Engine engine(rank.lane(), groups, options);
  if (hooks.made) hooks.made(engine);
  training([&] { engine.initialize(); });
  const std::int64_t batch = batch_of(layout);
  const std::int64_t microbatches = batch / (layout.dp * layout.micro_batch);
  LayoutResult mine{.dtype = layout.dtype};
  const auto source_of = [&](std::int64_t first) -> MicrobatchSource {
    return [&, first](std::int64_t index, Batch& out) {
      out = Batch{};
      const std::int64_t at = index * layout.dp + groups.mesh().coordinate(Axis::kDp);
      for (std::int64_t i = 0; i < layout.micro_batch; ++i) {
        const std::int64_t id = first + at * layout.micro_batch + i;
        hooks.fill ? hooks.fill(id, layout, out) : fill_row(id, layout, out);
      }
    };
  };
  if (hooks.gradients) {
    training([&] { mine.first = engine.gradients(microbatches, source_of(0)); });
    mine.gradients = values_of(engine, true);
  }
  mine.weights.push_back(values_of(engine, false));
  for (int step = 1; step <= steps; ++step) {
    const MicrobatchSource source = source_of((step - 1) * batch);
    StepResult r;
    training([&] {
      r = engine.train_step({.iteration = step,
                             .microbatches = microbatches,
                             .source = source,
                             .lr = 0.5,
                             .weight_decay = 0.01});
    });
    mine.losses.push_back(r.loss);
    mine.norms.push_back(r.grad_norm);
    mine.experts.push_back(r.experts);
    mine.weights.push_back(values_of(engine, false));
    if (hooks.stepped) hooks.stepped(engine, step);
    const std::string unlike = unlike_replicas(rank.lane(), groups, engine);
    if (mine.unlike.empty() && !unlike.empty()) mine.unlike = fmt::format("{}, step {}", unlike, step);
  }
  engine.flush();
  return mine;
}

LayoutResult run_layout(const LayoutCase& layout, int steps, const RunHooks& hooks) {
  LayoutResult result;
  std::mutex mutex;
  run_local_ranks({.ranks = layout.ranks(), .timeout = hooks.timeout}, [&](Communicator& world) {
    LayoutResult mine = run_layout_rank(layout, world, steps, hooks);
    const std::lock_guard lock(mutex);
    std::string unlike = result.unlike.empty() ? mine.unlike : result.unlike;
    if (world.rank() == 0) result = std::move(mine);
    result.unlike = std::move(unlike);
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
  const double of_gradients = gradient_difference(a.gradients, b.gradients, &name);
  look(of_gradients / tolerance, "gradient of " + name);
  // Weights: the update so far is the scale.
  const double unit = b.dtype == DType::kF64 ? 0x1p-52 : 0x1p-23;
  const auto updates = [&](std::size_t i) {
    Gradients update = b.weights[i], nearly = b.weights[i];
    for (auto& [tensor, values] : update) {
      const std::vector<double>& start = b.weights[0].at(tensor);
      std::vector<double>& other = nearly.at(tensor);
      const auto found = a.weights[i].find(tensor);
      for (std::size_t j = 0; j < values.size(); ++j) {
        const double difference = found == a.weights[i].end() ? 1e30 : found->second.at(j) - values[j];
        const double rounding = unit * static_cast<double>(i) * std::abs(values[j]);
        values[j] -= start[j];
        other[j] = values[j] + std::copysign(std::max(std::abs(difference) - rounding, 0.0), difference);
        if (std::isnan(difference)) other[j] = difference;
      }
    }
    return std::pair{nearly, update};
  };
  if (a.weights[0] != b.weights[0]) look(1e30, "initial weights");
  if (!a.unlike.empty()) look(1e30, "replicas differ: " + a.unlike);
  for (std::size_t i = 1; i < a.weights.size(); ++i) {
    const auto [nearly, update] = updates(i);
    const double of_weights = gradient_difference(nearly, update, &name);
    look(of_weights / tolerance, fmt::format("weights after step {}: {}", i, name));
  }
  return worst;
}

bool same_bits(const LayoutResult& a, const LayoutResult& b, std::string* what) {
  if (a.losses != b.losses) *what = "losses";
  if (a.norms != b.norms) *what = "norms";
  if (a.gradients != b.gradients) *what = "gradients";
  if (a.weights != b.weights) *what = "weights";
  for (const std::string& unlike : {a.unlike, b.unlike}) {
    if (!unlike.empty()) *what = "replicas: " + unlike;
  }
  return what->empty();
}

}  // namespace weft::testing
