#include "train/engine.hpp"

#include <algorithm>
#include <cmath>
#include <thread>

#include "core/log.hpp"
#include "ops/elementwise.hpp"
#include "optim/gradient_norm.hpp"

namespace weft {
namespace {

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

int threads_per_rank(std::int64_t asked, std::int64_t ranks) {
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(asked > 0 ? asked : std::max<std::int64_t>(1, cores / ranks));
}

EngineOptions EngineOptions::from(const TrainConfig& c) {
  return {.model = c.model,
          .dtype = dtype_of_precision(c.training.precision()),
          .micro_batch = c.training.micro_batch_size,
          .sequence_length = c.data.seq_length,
          .optimizer = c.optimizer,
          .seed = c.training.seed,
          .per_token_loss = c.training.calculate_per_token_loss,
          .on_nonfinite = c.training.on_nonfinite,
          .label_smoothing = c.training.label_smoothing,
          .z_loss = c.training.z_loss_coeff,
          .overlap_grad_reduce = c.parallel.overlap_grad_reduce,
          .bucket_elems = c.parallel.ddp_bucket_size};
}

Engine::Engine(Lane& lane, const Groups& groups, const EngineOptions& options)
    : lane_(lane),
      groups_(groups),
      options_(options),
      spec_(options.training ? local_spec(options.model) : evaluation_spec(options.model)),
      scaler_(scaler_for(options)) {
  ModelSpec evaluation = evaluation_spec(options.model);
  for (ModelSpec* spec : {&spec_, &evaluation}) {
    spec->output.label_smoothing = options.label_smoothing;
    spec->output.z_loss = options.z_loss;
  }
  const BuildContext context{params_, groups_.tp, options.dtype, options.sequence_length};
  model_ = build(spec_, lane_, context);
  // Without dropout the two models are the same object.
  if (spec_ != evaluation) evaluation_model_ = build(evaluation, lane_, context);
  buffer_ = std::make_unique<ParamBuffer>(
      lane_, params_, groups_.dp,
      ParamBufferOptions{.dtype = options.dtype,
                         .bucket_elems = options.bucket_elems > 0 ? options.bucket_elems : 40'000'000,
                         .overlap = options.overlap_grad_reduce});
  if (!options.training) return;
  const OptimizerConfig& o = options.optimizer;
  optimizer_ = o.optimizer == OptimizerConfig::Kind::kSgd
                   ? make_sgd(lane_, *buffer_, {.momentum = o.sgd_momentum})
                   : make_adamw(lane_, *buffer_, {o.adam_beta1, o.adam_beta2, o.adam_eps});
  dynamic_scale_ = options.dtype == DType::kF16 && o.loss_scale == 0;
}

Engine::~Engine() = default;

void Engine::initialize() {
  if (lane_.meta()) return;
  const Tensor& flat = optimizer_ != nullptr ? optimizer_->master() : buffer_->weights();
  for (const ParamBuffer::Slot& slot : buffer_->slots()) {
    weft::initialize(lane_.workers, *slot.param, ParamBuffer::piece(flat, slot),
                     RandomKey{static_cast<std::uint64_t>(options_.seed)});
  }
  if (optimizer_ != nullptr) optimizer_->publish(lane_);
}

Microbatch Engine::make_microbatch(const Batch& batch, std::int64_t iteration, bool keep) {
  const Shape shape{options_.micro_batch, options_.sequence_length};
  Microbatch mb;
  mb.saved = SavedStack(keep);
  mb.batch.tokens = lane_.alloc(DType::kI32, shape, "tokens");
  mb.batch.labels = lane_.alloc(DType::kI32, shape, "labels");
  mb.batch.sample_ids = lane_.alloc(DType::kI64, {shape[0]}, "sample ids");
  mb.dropout_key = RandomKey{static_cast<std::uint64_t>(options_.seed)}.with("dropout").with(
      static_cast<std::uint64_t>(iteration));
  if (lane_.meta()) return mb;
  WEFT_CHECK(batch.rows == shape[0] && batch.sequence_length == shape[1],
             "a microbatch of {} x {}, expected {}", batch.rows, batch.sequence_length, to_string(shape));
  std::copy(batch.tokens.begin(), batch.tokens.end(), mb.batch.tokens.data<std::int32_t>());
  std::copy(batch.labels.begin(), batch.labels.end(), mb.batch.labels.data<std::int32_t>());
  std::copy(batch.sample_ids.begin(), batch.sample_ids.end(), mb.batch.sample_ids.data<std::int64_t>());
  return mb;
}

std::vector<double> Engine::sum_over_ranks(std::vector<double> values) {
  const Tensor t = lane_.alloc(DType::kF64, {static_cast<std::int64_t>(values.size())}, "step statistics");
  if (!lane_.meta()) std::copy(values.begin(), values.end(), t.data<double>());
  groups_.dp.all_reduce(lane_, t).wait(lane_);
  if (!lane_.meta()) std::copy_n(t.data<double>(), values.size(), values.begin());
  return values;
}

Engine::LossSum Engine::forward_backward(std::int64_t iteration, std::int64_t microbatches,
                                         std::int64_t filled, const MicrobatchSource& source) {
  buffer_->begin_step(lane_, static_cast<int>(microbatches));
  LossSum total;
  first_bad_microbatch_ = -1;
  const Tensor sum = lane_.alloc(DType::kF64, {1}, "step statistics");
  for (std::int64_t m = 0; m < microbatches; ++m) {
    if (!lane_.meta()) source(m, host_);
    Microbatch mb = make_microbatch(host_, iteration, true);
    // Megatron's mean: each microbatch counts the same, however many target tokens it has. One that only
    // fills the batch up counts nowhere.
    mb.loss_scale = options_.per_token_loss
                        ? 1.0
                        : 1.0 / static_cast<double>(std::max<std::int64_t>(host_.target_tokens, 1) * filled);
    mb.loss_scale *= scaler_.scale();
    const std::size_t before = lane_.arena.in_use();
    model_->forward(lane_, mb);
    activation_bytes_ = lane_.arena.in_use() - before;
    ops::sum(lane_, mb.losses, sum);
    if (!lane_.meta()) {
      total.sum += *sum.data<double>();
      if (first_bad_microbatch_ < 0 && !std::isfinite(total.sum)) first_bad_microbatch_ = m;
    }
    total.tokens += host_.target_tokens;
    model_->backward(lane_, mb);
    mb.later.drain(lane_);
    WEFT_CHECK(mb.saved.empty(), "activations are left after the backward pass");
  }
  return total;
}

// Where gradients become the global ones: reduced over the data-parallel group, uses of a tied weight added
// up.
void Engine::finalize_gradients() {
  buffer_->finish_step();
  for (const auto& param : params_.all()) {
    if (param->owner() != nullptr) ops::add_in_place(lane_, param->owner()->main_grad(), param->main_grad());
  }
}

StepResult Engine::train_step(const StepInput& input) {
  const std::int64_t filled =
      input.filled_microbatches > 0 ? input.filled_microbatches : input.microbatches * groups_.dp.size();
  const LossSum local = forward_backward(input.iteration, input.microbatches, filled, input.source);
  const std::vector<double> sums =
      sum_over_ranks({local.sum, static_cast<double>(local.tokens), input.stop_requested ? 1.0 : 0.0});
  StepResult result{.tokens = static_cast<std::int64_t>(sums[1]), .stop = sums[2] > 0};
  const double tokens = std::max(sums[1], 1.0);
  result.loss = sums[0] / tokens;
  result.loss_scale = scaler_.scale();

  finalize_gradients();
  const bool stop_on_nonfinite = options_.on_nonfinite == TrainingConfig::OnNonfinite::kStop;
  if (stop_on_nonfinite && !std::isfinite(result.loss))
    stop_for_nonfinite_loss(input.iteration, input.source);
  const double scale = (options_.per_token_loss ? 1.0 / tokens : 1.0) / scaler_.scale();
  result.grad_norm = gradient_norm(lane_, *buffer_, groups_.tp, scale);
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (!finite && stop_on_nonfinite && !dynamic_scale_) {
    fail(
        "step {}: the gradient norm is not finite although the loss is {}; in the order of the backward pass "
        "the first gradient that is not finite is {}; "
        "nothing was updated (--on-nonfinite skip leaves such steps out)",
        input.iteration, result.loss, first_nonfinite_gradient());
  }
  if (const std::string warning = scaler_.update(!finite); !warning.empty()) result.warning = warning;
  result.skipped = !finite;
  if (!finite && !dynamic_scale_ && !skipped_before_) say_skipped(input, result);
  skipped_before_ = !finite;
  if (finite) {
    optimizer_->step(
        lane_, {.lr = input.lr,
                .weight_decay = input.weight_decay,
                .gradient_scale = scale * clip_coefficient(result.grad_norm, options_.optimizer.clip_grad)});
  }
  return result;
}

void Engine::stop_for_nonfinite_loss(std::int64_t iteration, const MicrobatchSource& source) {
  if (first_bad_microbatch_ < 0) {  // another rank's: it reports
    groups_.world.barrier(lane_);
    throw Aborted("another rank's loss is not finite");
  }
  fail(
      "step {}: the loss is not finite; {}; nothing was updated and nothing was saved (--on-nonfinite skip "
      "leaves such steps out)",
      iteration, first_nonfinite_place(iteration, source));
}

std::string Engine::first_nonfinite_place(std::int64_t iteration, const MicrobatchSource& source) {
  source(first_bad_microbatch_, host_);
  Microbatch mb = make_microbatch(host_, iteration, false);
  const std::string where = model_->first_nonfinite(lane_, mb);
  return fmt::format("microbatch {} of this rank first shows a NaN or infinity in {}", first_bad_microbatch_,
                     where.empty() ? "the sum of the losses" : where);
}

void Engine::say_skipped(const StepInput& input, const StepResult& result) {
  const int rank = groups_.world.rank();
  if (first_bad_microbatch_ >= 0) {
    log_warn("rank {}: step {} is left out: the loss is not finite; {}", rank, input.iteration,
             first_nonfinite_place(input.iteration, input.source));
  } else if (rank == 0 && std::isfinite(result.loss)) {
    log_warn(
        "rank 0: step {} is left out: the gradient norm is not finite although the loss is {}; in the order "
        "of "
        "the backward pass the first gradient that is not finite is {}",
        input.iteration, result.loss, first_nonfinite_gradient());
  }
}

std::string Engine::first_nonfinite_gradient() {
  const auto& params = params_.all();
  for (auto param = params.rbegin(); param != params.rend(); ++param) {
    if (ops::find_nonfinite(lane_, (*param)->main_grad()) >= 0) return (*param)->name();
  }
  return "none (the sum of squares overflows)";
}

Engine::LossSum Engine::evaluate(std::int64_t microbatches, const MicrobatchSource& source) {
  const GptModel& model = evaluation_model_ != nullptr ? *evaluation_model_ : *model_;
  LossSum total;
  const Tensor sum = lane_.alloc(DType::kF64, {1}, "step statistics");
  for (std::int64_t m = 0; m < microbatches; ++m) {
    if (!lane_.meta()) source(m, host_);
    Microbatch mb = make_microbatch(host_, 0, false);
    model.forward(lane_, mb);
    ops::sum(lane_, mb.losses, sum);
    if (!lane_.meta()) total.sum += *sum.data<double>();
    total.tokens += host_.target_tokens;
  }
  const std::vector<double> sums = sum_over_ranks({total.sum, static_cast<double>(total.tokens)});
  return {sums[0], static_cast<std::int64_t>(sums[1])};
}

Engine::LossSum Engine::gradients(std::int64_t microbatches, const MicrobatchSource& source) {
  const LossSum local = forward_backward(0, microbatches, microbatches * groups_.dp.size(), source);
  const std::vector<double> sums = sum_over_ranks({local.sum, static_cast<double>(local.tokens)});
  finalize_gradients();
  ops::scale_in_place(lane_, buffer_->gradients(), 1.0 / std::max(sums[1], 1.0));
  return {sums[0], static_cast<std::int64_t>(sums[1])};
}

Tensor Engine::logits(const Batch& batch) {
  Microbatch mb = make_microbatch(batch, 0, false);
  const GptModel& model = evaluation_model_ != nullptr ? *evaluation_model_ : *model_;
  const Tensor local = model.logits(lane_, mb);
  const std::int64_t rows = local.rows(), columns = local.columns(), ranks = groups_.tp.size();
  const Tensor gathered = groups_.tp.all_gather(lane_, local.view({rows, columns})).wait(lane_);
  const Tensor out = lane_.alloc(accumulator_of(options_.dtype),
                                 {local.dim(0), local.dim(1), spec_.vocab_size}, "gathered logits");
  for (std::int64_t r = 0; r < ranks; ++r) {
    const std::int64_t width = std::clamp<std::int64_t>(spec_.vocab_size - r * columns, 0, columns);
    if (width == 0) continue;
    ops::copy(lane_, gathered.slice(r * rows, rows).slice_columns(0, width),
              out.view({rows, spec_.vocab_size}).slice_columns(r * columns, width));
  }
  return out;
}

}  // namespace weft
