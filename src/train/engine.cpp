#include "train/engine.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "core/log.hpp"
#include "nn/gather.hpp"
#include "nn/moe/balance.hpp"
#include "ops/elementwise.hpp"
#include "optim/finalize_gradients.hpp"
#include "train/context_parallel.hpp"

namespace weft {
namespace {

RecomputeSpec recompute_of(const ParallelConfig& p) {
  using Granularity = ParallelConfig::RecomputeGranularity;
  if (p.recompute_granularity == Granularity::kNone) return {};
  RecomputeSpec r{.layers = p.recompute_num_layers};
  if (p.recompute_granularity == Granularity::kFull) {
    r.kind = p.recompute_method == ParallelConfig::RecomputeMethod::kBlock ? RecomputeSpec::Kind::kBlock
                                                                           : RecomputeSpec::Kind::kUniform;
    return r;
  }
  r.kind = RecomputeSpec::Kind::kSelective;
  const auto has = [&](const char* module) {
    return std::find(p.recompute_modules.begin(), p.recompute_modules.end(), module) !=
           p.recompute_modules.end();
  };
  r.core_attention = has("core_attn");
  r.mlp = has("mlp");
  r.norms = has("layernorm");
  return r;
}

// Chunks of --tp-comm-overlap: enough to hide three quarters, few enough for products to stay efficient.
constexpr int kTensorParallelChunks = 4;

FeedOptions feed_options(const EngineOptions& o, int cp_rank, int tp_rank) {
  return {.micro_batch = o.micro_batch,
          .sequence_length = o.sequence_length,
          .order = o.sequence_order,
          .cp = o.layout.mesh.cp,
          .cp_rank = cp_rank,
          .sequence_parallel = o.sequence_parallel ? o.layout.mesh.tp : 1,
          .sequence_parallel_rank = o.sequence_parallel ? tp_rank : 0,
          .positions = o.document_positions,
          .documents = o.documents_apart,
          .experts = o.layout.experts};
}

ModelSpec training_spec(const EngineOptions& options) {
  if (!options.training) return evaluation_spec(options.model);
  return options.fused ? fused_spec(options.model) : local_spec(options.model);
}

LossScaler scaler_for(const EngineOptions& options) {
  const OptimizerConfig& o = options.optimizer;
  if (options.dtype != DType::kF16 || !options.training) return LossScaler::constant(1);
  if (o.loss_scale > 0) return LossScaler::constant(o.loss_scale);
  return LossScaler::dynamic({.initial = o.initial_loss_scale,
                              .minimum = o.min_loss_scale,
                              .window = o.loss_scale_window,
                              .hysteresis = o.hysteresis});
}

}  // namespace

DType dtype_of_precision(TrainingConfig::Precision precision) {
  switch (precision) {
    case TrainingConfig::Precision::kFp32:
      return DType::kF32;
    case TrainingConfig::Precision::kBf16:
      return DType::kBF16;
    case TrainingConfig::Precision::kFp16:
      return DType::kF16;
    case TrainingConfig::Precision::kFp64:
      return DType::kF64;
  }
  return DType::kF32;
}

int threads_per_rank(std::int64_t asked, std::int64_t ranks) {
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(asked > 0 ? asked : std::max<std::int64_t>(1, cores / ranks));
}

EngineOptions EngineOptions::from(const TrainConfig& c) {
  return {.model = c.model,
          .device = c.parallel.device == ParallelConfig::Device::kCuda ? DeviceKind::kCuda : DeviceKind::kCpu,
          .fused = c.parallel.device == ParallelConfig::Device::kCuda,
          .dtype = dtype_of_precision(c.training.precision()),
          .micro_batch = c.training.micro_batch_size,
          .sequence_length = c.data.seq_length,
          .optimizer = c.optimizer,
          .seed = c.training.seed,
          .per_token_loss = c.training.calculate_per_token_loss,
          .on_nonfinite = c.training.on_nonfinite,
          .label_smoothing = c.training.label_smoothing,
          .z_loss = c.training.z_loss_coeff,
          .layout = layout_of(c),
          .sequence_parallel = c.parallel.sequence_parallel && c.parallel.tensor_model_parallel_size > 1,
          .sequence_order = weft::sequence_order(c.parallel),
          .context_methods = weft::context_methods(c.parallel),
          .document_positions = c.data.reset_position_ids,
          .documents_apart = c.data.reset_attention_mask,
          .tensor_parallel_chunks = c.parallel.tp_comm_overlap && c.parallel.tensor_model_parallel_size > 1
                                        ? kTensorParallelChunks
                                        : 1,
          .recompute = recompute_of(c.parallel),
          .distributed_optimizer = c.parallel.use_distributed_optimizer,
          .overlap_grad_reduce = c.parallel.overlap_grad_reduce,
          .overlap_param_gather = c.parallel.overlap_param_gather,
          .overlap_p2p = c.parallel.overlap_p2p_communication,
          .bucket_elems = c.parallel.ddp_bucket_size,
          .freeze = c.training.freeze,
          .deterministic = c.training.deterministic_mode,
          .record = c.parallel.cuda_graph_impl == ParallelConfig::CudaGraphImpl::kLocal};
}

Layout layout_of(const TrainConfig& c) {
  const ParallelConfig& p = c.parallel;
  const ModelConfig m = resolved(c.model);
  const auto small = [](std::int64_t n) { return static_cast<int>(n); };
  const bool experts = m.moe.num_experts > 0;
  // Without experts the expert grid is never used, but must have the dense one's stages all the same.
  ExpertSizes sizes = expert_sizes(p);
  if (!experts) {
    sizes = {
        .ep = 1,
        .etp = p.use_tp_pp_dp_mapping ? small(p.tensor_model_parallel_size * p.context_parallel_size) : 0};
  }
  return {.mesh = {.tp = small(p.tensor_model_parallel_size),
                   .cp = small(p.context_parallel_size),
                   .dp = small(data_parallel_size(p)),
                   .pp = small(p.pipeline_model_parallel_size),
                   .ep = sizes.ep,
                   .etp = sizes.etp,
                   .pp_before_dp = p.use_tp_pp_dp_mapping},
          .pipeline = pipeline_shape(c),
          .stages = split_stages(stage_split(c)),
          .kv_replicas = small(std::max<std::int64_t>(p.tensor_model_parallel_size / m.num_query_groups, 1)),
          .head_exchange = head_exchange(p),
          .tied = m.tied,
          .experts = experts};
}

ExpertSizes expert_sizes(const ParallelConfig& p) {
  const std::int64_t etp =
      p.expert_tensor_parallel_size > 0 ? p.expert_tensor_parallel_size : p.tensor_model_parallel_size;
  return {.ep = static_cast<int>(p.expert_model_parallel_size), .etp = static_cast<int>(etp)};
}

Layout layout_of(const ParallelConfig& parallel, const ModelConfig& model) {
  TrainConfig config;
  config.parallel = parallel;
  config.model = resolved(model);
  return layout_of(config);
}

Engine::Engine(Lane& lane, const Groups& groups, const EngineOptions& options)
    : lane_(lane),
      groups_(groups),
      options_(options),
      feed_(feed_options(options, groups.cp().rank(), groups.tp().rank())),
      spec_(training_spec(options)),
      scaler_(scaler_for(options)) {
  ModelSpec evaluation = evaluation_spec(options.model);
  for (ModelSpec* spec : {&spec_, &evaluation}) {
    spec->output.label_smoothing = options.label_smoothing;
    spec->output.z_loss = options.z_loss;
    spec->sequence_parallel = options.sequence_parallel;
    spec->tensor_parallel_chunks = options.tensor_parallel_chunks;
    spec->freeze = options.freeze;
    spec->document_positions = options.document_positions;
    const auto& methods = options.context_methods;
    for (std::size_t i = 0; i < spec->layers.size(); ++i) {
      CoreAttentionSpec& attention = core_attention_of(spec->layers[i].self_attention);
      attention.deterministic = options.deterministic;
      attention.context = methods.size() == 1 ? methods.front() : methods.at(i);
    }
  }
  if (options.training) spec_.recompute = options.recompute;
  const bool distributed = options.training && options.distributed_optimizer;
  BuildContext context{
      .params = params_, .tp = groups_.tp(), .dtype = options.dtype, .positions = feed_.rows()};
  if (feed_.cut())
    context.context.emplace(ContextParallel{groups_.cp(), *feed_.cut(), groups_.a2a(), groups_.p2p()});
  if (const ExpertGroups* experts = groups_.experts(); experts != nullptr) {
    const Mesh& mesh = groups_.mesh();
    context.experts.emplace(ExpertParallel{
        *experts->etp_ep, {.ep = mesh.size(Axis::kEp), .etp = mesh.size(Axis::kEtp)}, *experts->tp_cp});
    router_statistics_ = lane_.alloc(
        DType::kF64,
        {static_cast<std::int64_t>(spec_.layers.size()), nn::RouterStatistics::columns(spec_.experts())},
        "router statistics");
    context.router_statistics = router_statistics_;
  }
  for (const StageRange& stage : options.layout.stages_of(groups_.mesh().coordinate(Axis::kPp))) {
    context.stage = stage;
    context.gate = distributed && options.overlap_param_gather ? &gate_ : nullptr;
    models_.push_back(build(spec_, lane_, context));
    context.gate = nullptr;
    // Without dropout the two models are the same objects.
    if (spec_ != evaluation) evaluation_models_.push_back(build(evaluation, lane_, context));
  }
  add_partition(false);
  if (groups_.experts() != nullptr) add_partition(true);
  if (!options.training) return;
  if (may_record()) recordings_ = std::make_unique<StepRecordings>(params_);
  dynamic_scale_ = options.dtype == DType::kF16 && options.optimizer.loss_scale == 0;
}

void Engine::add_partition(bool experts) {
  const EngineOptions& options = options_;
  Partition& p = partitions_.emplace_back();
  p.replicas = experts ? groups_.experts()->edp.get() : &groups_.dp_cp();
  p.buffer = std::make_unique<ParamBuffer>(
      lane_, params_, *p.replicas,
      ParamBufferOptions{.dtype = options.dtype,
                         .bucket_elems = options.bucket_elems > 0 ? options.bucket_elems : 40'000'000,
                         .overlap = options.overlap_grad_reduce,
                         .distributed = options.training && options.distributed_optimizer,
                         .experts = experts});
  gate_.buffers.push_back(p.buffer.get());
  if (!options.training) return;
  const OptimizerConfig& o = options.optimizer;
  p.optimizer = o.optimizer == OptimizerConfig::Kind::kSgd
                    ? make_sgd(lane_, *p.buffer, {.momentum = o.sgd_momentum})
                    : make_adamw(lane_, *p.buffer, {o.adam_beta1, o.adam_beta2, o.adam_eps});
  p.norm = make_norm(p);
}

std::vector<CheckpointPart> Engine::checkpoint_parts() const {
  std::vector<CheckpointPart> parts;
  for (const Partition& p : partitions_) parts.push_back({*p.buffer, p.optimizer.get(), *p.replicas});
  return parts;
}

std::unique_ptr<GradientNorm> Engine::make_norm(const Partition& partition) {
  const bool dense = partition.replicas == &groups_.dp_cp();
  return std::make_unique<GradientNorm>(
      lane_, *partition.buffer, static_cast<int>(spec_.layers.size()) + 2, groups_.tp().rank(),
      dense ? groups_.model() : *groups_.experts()->model, *partition.replicas);
}

Tensor Engine::sums_of_squares() {
  Tensor sums = partitions_.front().norm->sums(lane_);
  for (std::size_t i = 1; i < partitions_.size(); ++i) {
    ops::add_in_place(lane_, sums, partitions_[i].norm->sums(lane_));
  }
  return sums;
}

void Engine::read_marks() {
  for (Partition& p : partitions_) {
    p.optimizer->read_marks(lane_);
    p.norm = make_norm(p);
  }
}

Engine::~Engine() = default;

void Engine::initialize() {
  if (lane_.meta()) return;
  const auto draw = [&](const Param& param, const Tensor& into) {
    weft::initialize(lane_, param, into, RandomKey{static_cast<std::uint64_t>(options_.seed)});
  };
  for (const Partition& p : partitions_) {
    // Drawn whole, in the precision of the master weights; kept is what this rank owns.
    const Tensor full = p.optimizer == nullptr    ? p.buffer->weights()
                        : p.buffer->distributed() ? p.buffer->scratch()
                                                  : p.optimizer->master();
    for (const ParamBuffer::Slot& slot : p.buffer->slots()) draw(*slot.param, ParamBuffer::piece(full, slot));
    for (const ParamBuffer::Slot& slot : p.buffer->frozen()) draw(*slot.param, slot.param->weight());
    for (const ParamBuffer::Slot& slot : p.buffer->states()) draw(*slot.param, slot.param->weight());
    if (p.optimizer != nullptr) p.buffer->keep_owned(lane_, full, p.optimizer->master());
  }
  if (options_.training) publish();
}

void Engine::publish() {
  for (const Partition& p : partitions_) p.optimizer->publish(lane_);
  start_gather();
  flush();
}

void Engine::start_gather() {
  for (const Partition& p : partitions_) p.buffer->start_gather(lane_);
}

void Engine::flush() {
  for (const Partition& p : partitions_) p.buffer->finish_gather(lane_);
}

Microbatch Engine::make_microbatch(const Batch& batch, std::int64_t iteration, bool keep) {
  Microbatch mb;
  mb.saved = SavedStack(keep);
  mb.batch = feed_.bring(lane_, batch);
  mb.whole_tokens = options_.micro_batch * options_.sequence_length;
  mb.target_tokens = batch.target_tokens;
  mb.dropout_key = RandomKey{static_cast<std::uint64_t>(options_.seed)}.with("dropout").with(
      static_cast<std::uint64_t>(iteration));
  return mb;
}

DrainPoint Engine::drain_point() const {
  return defers_weight_gradients(options_.layout.pipeline) ? DrainPoint::kSchedule : DrainPoint::kLinear;
}

MessageShape Engine::message() const {
  const std::int64_t rows = options_.sequence_parallel ? feed_.rows() / groups_.tp().size() : feed_.rows();
  return {options_.dtype, {rows, options_.micro_batch, spec_.hidden_size}};
}

PipelineShape Engine::pipeline(std::int64_t microbatches, bool forward_only) const {
  PipelineShape shape = options_.layout.pipeline;
  shape.microbatches = static_cast<int>(microbatches);
  shape.forward_only = forward_only;
  return shape;
}

void Engine::run(const PipelineShape& shape, std::vector<Stage*> stages) {
  Executor(std::move(stages), groups_.channels(),
           {.overlap = options_.overlap_p2p, .sends_in_flight = sends_in_flight(shape), .watch = watch_})
      .run(lane_, make_program(shape, groups_.mesh().coordinate(Axis::kPp)));
}

void Engine::run_forward(std::int64_t microbatches,
                         const std::function<Tensor(std::size_t, int, const Tensor&)>& body) {
  std::vector<ForwardStage> stages;
  for (std::size_t chunk = 0; chunk < models_.size(); ++chunk) {
    stages.emplace_back(message(), [&body, chunk](int microbatch, const Tensor& received) {
      return body(chunk, microbatch, received);
    });
  }
  std::vector<Stage*> pointers;
  for (ForwardStage& stage : stages) pointers.push_back(&stage);
  run(pipeline(microbatches, true), std::move(pointers));
}

const std::vector<std::unique_ptr<GptModel>>& Engine::evaluation_models() const {
  return evaluation_models_.empty() ? models_ : evaluation_models_;
}

Engine::Passed Engine::nothing_passed() {
  Passed none{.loss = lane_.alloc(DType::kF64, {1}, "step statistics")};
  ops::fill(lane_, none.loss, 0);
  return none;
}

void Engine::add_losses(Passed& passed, const Microbatch& mb) {
  if (!mb.losses.defined()) return;
  const Tensor sum = lane_.alloc(DType::kF64, {1}, "step statistics");
  ops::sum(lane_, mb.losses, sum);
  ops::add_in_place(lane_, passed.loss, sum);
}

Tensor Engine::sum_over_ranks(const Passed& mine, bool stop) {
  Tensor t = lane_.alloc(DType::kF64, {3}, "step statistics");
  // Tensor-parallel ranks know the same, and stages and context-parallel ranks the same tokens: one of them
  // counts.
  const bool first = groups_.tp().rank() == 0;
  if (first) {
    ops::copy(lane_, mine.loss, t.slice(0, 1));  // 0 on stages without the loss
  } else {
    ops::fill(lane_, t.slice(0, 1), 0);
  }
  const bool counts = first && groups_.pp().rank() == 0 && groups_.cp().rank() == 0;
  const std::vector<double> known = {counts ? static_cast<double>(mine.tokens) : 0.0, stop ? 1.0 : 0.0};
  ops::from_host(lane_, known, t.slice(1, 2));
  groups_.world().all_reduce(lane_, t).wait(lane_);
  return t;
}

Tensor Engine::sum_of_router_statistics() {
  if (router_statistics_.defined()) groups_.world().all_reduce(lane_, router_statistics_).wait(lane_);
  return router_statistics_;
}

Engine::WorldSums Engine::read(const Tensor& sums) {
  const std::vector<double> values = ops::to_host<double>(lane_, sums);
  return {values[0], values[1], values[2]};
}

Engine::Passed Engine::forward_backward(std::int64_t iteration, std::int64_t microbatches,
                                        std::int64_t filled, const MicrobatchSource& source, bool reduce) {
  for (const Partition& p : partitions_) {
    p.buffer->begin_step(lane_, static_cast<int>(microbatches), reduce);
  }
  if (router_statistics_.defined()) ops::fill(lane_, router_statistics_, 0);
  Passed total = nothing_passed();
  const PipelineShape shape = pipeline(microbatches, false);
  const DrainPoint drain = drain_point();
  chunk_activation_bytes_.resize(models_.size());
  std::size_t before = 0;
  std::vector<TrainingStage> stages;
  for (std::size_t chunk = 0; chunk < models_.size(); ++chunk) {
    const auto make = [&, chunk](int m) {
      if (!lane_.meta()) source(m, host_);
      if (chunk == 0) total.tokens += host_.target_tokens;
      Microbatch mb = make_microbatch(host_, iteration, true);
      mb.later = WeightGrads(drain);
      // Megatron's mean: each microbatch counts the same, however many target tokens it has. One that only
      // fills the batch up counts nowhere.
      mb.loss_scale =
          options_.per_token_loss
              ? 1.0
              : 1.0 / static_cast<double>(std::max<std::int64_t>(host_.target_tokens, 1) * filled);
      mb.loss_scale *= scaler_.scale();
      before = lane_.arena.in_use();
      return mb;
    };
    const auto forwarded = [&, chunk](int m, const Microbatch& mb) {
      if (m == 0) chunk_activation_bytes_[chunk] = lane_.arena.in_use() - before;
      add_losses(total, mb);
    };
    TrainingStage::Hooks hooks{make, forwarded, {}};
    if (recordings_ != nullptr && !lane_.tools->tracing()) {
      hooks.together = [&](int m, const Microbatch& mb, const std::function<void()>& pass) {
        if (!stays_on_device(m, microbatches)) return false;
        recordings_->run(lane_, mb, total.loss, pass);
        return true;
      };
    }
    stages.emplace_back(*models_[chunk], message(), static_cast<int>(microbatches), std::move(hooks));
  }
  std::vector<Stage*> pointers;
  for (TrainingStage& stage : stages) pointers.push_back(&stage);
  run(shape, std::move(pointers));
  return total;
}

bool Engine::may_record() const {
  const auto& mesh = options_.layout.mesh;
  return options_.record && lane_.device().kind == DeviceKind::kCuda && options_.training &&
         mesh.tp * mesh.cp * mesh.pp == 1 && options_.model.hidden_dropout == 0 &&
         options_.model.attention_dropout == 0 && router_statistics_.defined() == false;
}

bool Engine::stays_on_device(std::int64_t microbatch, std::int64_t microbatches) const {
  if (groups_.dp_cp().size() == 1) return true;
  // The first one may wait for weights, the last one starts reductions.
  return microbatch + 1 < microbatches && (microbatch > 0 || !options_.overlap_param_gather);
}

void Engine::finalize() {
  for (const Partition& p : partitions_) {
    finalize_gradients(lane_, *p.buffer, {groups_.tp(), groups_.kv_replicas(), groups_.embedding()});
  }
}

void Engine::rehearse(std::int64_t microbatches, bool evaluation) {
  for (const Partition& p : partitions_) ops::fill(lane_, p.buffer->weights(), 0.01);
  const MicrobatchSource anything = [&](std::int64_t, Batch& out) {
    const auto tokens = static_cast<std::size_t>(options_.micro_batch * options_.sequence_length);
    out.rows = options_.micro_batch;
    out.sequence_length = options_.sequence_length;
    out.tokens.assign(tokens, 0);
    out.labels.assign(tokens, 0);
    out.sample_ids.assign(static_cast<std::size_t>(options_.micro_batch), 0);
    out.position_ids.assign(tokens, 0);
    out.borders.assign(static_cast<std::size_t>(options_.micro_batch),
                       {0, static_cast<std::int32_t>(options_.sequence_length)});
    out.target_tokens = options_.micro_batch * options_.sequence_length;
  };
  const Passed passed = forward_backward(1, microbatches, microbatches, anything);
  read(sum_over_ranks(passed, false));
  sum_of_router_statistics();
  finalize();
  if (options_.training) {
    ops::to_host<double>(lane_, sums_of_squares());
    for (const Partition& p : partitions_) p.optimizer->step(lane_, {.lr = 0, .weight_decay = 0});
  }
  start_gather();
  flush();
  if (evaluation) evaluate(microbatches, anything);
}

StepResult Engine::train_step(const StepInput& input) {
  const std::int64_t filled = input.filled_microbatches > 0
                                  ? input.filled_microbatches
                                  : input.microbatches * groups_.mesh().size(Axis::kDp);
  WorldSums sums;
  std::vector<double> squares, routers;
  double waited = 0;
  {  // What is on the device is gone before a step that is not finite is looked into: that takes a step's
     // memory.
    const Passed mine = forward_backward(input.iteration, input.microbatches, filled, input.source);
    const Tensor statistics = sum_over_ranks(mine, input.stop_requested),
                 of_routers = sum_of_router_statistics();
    finalize();
    const Tensor by_block = sums_of_squares();
    // The one place of a step where the host waits for the device.
    const auto before = std::chrono::steady_clock::now();
    sums = read(statistics);
    squares = ops::to_host<double>(lane_, by_block);
    if (of_routers.defined()) routers = ops::to_host<double>(lane_, of_routers);
    waited = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count();
  }
  StepResult result{
      .tokens = static_cast<std::int64_t>(sums.tokens), .stop = sums.stop > 0, .waited_ms = waited};
  const double tokens = std::max(sums.tokens, 1.0);
  result.loss = sums.loss / tokens;
  result.loss_scale = scaler_.scale();
  const double scale = (options_.per_token_loss ? 1.0 / tokens : 1.0) / scaler_.scale();
  result.grad_norm = GradientNorm::norm(squares, scale);
  result.experts = expert_loads(routers, spec_.experts(), scale);
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (!finite && options_.on_nonfinite == TrainingConfig::OnNonfinite::kStop &&
      (!dynamic_scale_ || !std::isfinite(result.loss))) {
    stop_for_nonfinite(input, result);
  }
  if (const std::string warning = scaler_.update(!finite); !warning.empty()) result.warning = warning;
  result.skipped = !finite;
  if (!finite && !dynamic_scale_ && !skipped_before_) say_skipped(input, result);
  skipped_before_ = !finite;
  if (finite) {
    const UpdateStep update{
        .lr = input.lr,
        .weight_decay = input.weight_decay,
        .gradient_scale = scale * clip_coefficient(result.grad_norm, options_.optimizer.clip_grad)};
    for (const Partition& p : partitions_) p.optimizer->step(lane_, update);
    move_expert_biases(lane_, params_, result.experts, options_.model.moe.bias_update_rate);
    start_gather();
    if (!options_.overlap_param_gather) flush();
  }
  return result;
}

bool Engine::speaks(double number) {
  const Tensor t = lane_.alloc(DType::kF64, {1}, "step statistics");
  ops::from_host(lane_, std::vector<double>{number}, t);
  groups_.world().all_reduce(lane_, t, ReduceOp::kMax).wait(lane_);
  return ops::to_host<double>(lane_, t).front() == number;
}

std::string Engine::first_nonfinite_place(std::int64_t iteration, std::int64_t microbatches,
                                          const MicrobatchSource& source) {
  const Layout& layout = options_.layout;
  const int pp_rank = groups_.mesh().coordinate(Axis::kPp);
  std::string place;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  run_forward(microbatches, [&](std::size_t chunk, int m, const Tensor& received) {
    source(m, host_);
    Microbatch mb = make_microbatch(host_, iteration, false);
    Tensor sent;
    const std::string found = models_[chunk]->first_nonfinite(lane_, received, mb, &sent);
    const std::int64_t order = std::int64_t{m} * layout.pipeline.stages() +
                               stage_of(layout.pipeline, pp_rank, static_cast<int>(chunk));
    if (!found.empty() && order < first) {
      first = order;
      place = fmt::format("microbatch {} of this rank first shows a NaN or infinity in {}", m, found);
    }
    return sent;
  });
  // Earliest microbatch, then earliest stage, then lowest rank; where nothing was found, the sum itself
  // overflows.
  const int world = groups_.world().size(), rank = groups_.world().rank();
  constexpr std::int64_t kNone = std::int64_t{1} << 40;
  const std::int64_t order = std::min(first, kNone);
  const bool mine = speaks(-static_cast<double>(order * world + rank));
  if (!mine) return {};
  return place.empty() ? "every part of the model is finite, but the sum of the losses is not" : place;
}

std::string Engine::first_nonfinite_gradient(const StepInput& input) {
  const std::int64_t filled = input.filled_microbatches > 0
                                  ? input.filled_microbatches
                                  : input.microbatches * groups_.mesh().size(Axis::kDp);
  forward_backward(input.iteration, input.microbatches, filled, input.source, false);
  std::string name;
  double order = -1;
  const auto& params = params_.all();
  for (auto param = params.rbegin(); param != params.rend() && name.empty(); ++param) {
    if (!(*param)->trains() || ops::find_nonfinite(lane_, (*param)->main_grad()) < 0) continue;
    name = (*param)->name() + " of this rank";
    // A tied output layer has the embeddings' block, but its gradient comes first.
    const bool output = (*param)->owner() != nullptr || (*param)->traits().copy;
    order = output ? static_cast<double>(spec_.layers.size()) + 1 : (*param)->traits().block;
  }
  const int world = groups_.world().size(), rank = groups_.world().rank();
  const bool mine = speaks((order + 1) * world + (world - rank));
  if (!mine) return {};
  return name.empty() ? "none of any rank's own (their sum, or the sum of squares, overflows)" : name;
}

std::string Engine::reason(const StepInput& input, const StepResult& result) {
  if (!std::isfinite(result.loss)) {
    const std::string place = first_nonfinite_place(input.iteration, input.microbatches, input.source);
    return place.empty() ? "" : fmt::format("the loss is not finite; {}", place);
  }
  const std::string name = first_nonfinite_gradient(input);
  if (name.empty()) return {};
  return fmt::format(
      "the gradient norm is not finite although the loss is {}; in the order of the backward pass the first "
      "gradient that is not finite is {}",
      result.loss, name);
}

void Engine::stop_for_nonfinite(const StepInput& input, const StepResult& result) {
  const std::string text = reason(input, result);
  if (text.empty()) {  // another rank speaks
    groups_.world().barrier(lane_);
    throw Aborted("a step is not finite; another rank says where");
  }
  fail("step {}: {}; nothing was updated and nothing was saved (--on-nonfinite skip leaves such steps out)",
       input.iteration, text);
}

void Engine::say_skipped(const StepInput& input, const StepResult& result) {
  const std::string text = reason(input, result);
  if (!text.empty())
    log_warn("rank {}: step {} is left out: {}", groups_.world().rank(), input.iteration, text);
}

Engine::LossSum Engine::evaluate(std::int64_t microbatches, const MicrobatchSource& source) {
  flush();
  Passed total = nothing_passed();
  run_forward(microbatches, [&](std::size_t chunk, int m, const Tensor& received) {
    if (!lane_.meta()) source(m, host_);
    if (chunk == 0) total.tokens += host_.target_tokens;
    Microbatch mb = make_microbatch(host_, 0, false);
    Tensor sent = evaluation_models()[chunk]->forward(lane_, received, mb);
    add_losses(total, mb);
    return sent;
  });
  const WorldSums sums = read(sum_over_ranks(total, false));
  return {sums.loss, static_cast<std::int64_t>(sums.tokens)};
}

Engine::LossSum Engine::gradients(std::int64_t microbatches, const MicrobatchSource& source) {
  flush();
  const Passed mine =
      forward_backward(0, microbatches, microbatches * groups_.mesh().size(Axis::kDp), source);
  const WorldSums sums = read(sum_over_ranks(mine, false));
  finalize();
  for (const Partition& p : partitions_) {
    p.buffer->gather_gradients(lane_);
    ops::scale_in_place(lane_, p.buffer->gradients(), 1.0 / std::max(sums.tokens, 1.0));
  }
  return {sums.loss, static_cast<std::int64_t>(sums.tokens)};
}

}  // namespace weft
