// Engine: one rank's part of the model, its memory and optimizer, and what is done with them: a training
// step, an evaluation, scoring. The same code runs on a meta lane, which is how the plan knows the size of
// the arena to the byte.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "data/loader.hpp"
#include "data_parallel/param_buffer.hpp"
#include "model/gpt_model.hpp"
#include "optim/gradient_norm.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/optimizer.hpp"
#include "pipeline/executor.hpp"
#include "train/config.hpp"
#include "train/engine_stage.hpp"
#include "train/expert_load.hpp"
#include "train/groups.hpp"
#include "train/microbatch_feed.hpp"
#include "train/step_recordings.hpp"

namespace weft {

// Threads that each rank may use inside operations: `asked`, or where that is 0 its share of this machine's
// cores.
int threads_per_rank(std::int64_t asked, std::int64_t ranks);
// Of weights and activations.
DType dtype_of_precision(TrainingConfig::Precision precision);

// Fills `out` with microbatch `index` of this rank (host memory, reused between calls).
using MicrobatchSource = std::function<void(std::int64_t index, Batch& out)>;

struct StepInput {
  std::int64_t iteration = 1;     // from 1: part of the dropout key
  std::int64_t microbatches = 1;  // on this rank; the same on every rank
  // Microbatches of all data-parallel ranks together that hold samples: what the mean of means
  // (--no-calculate-per-token-loss) divides by. 0: all of them.
  std::int64_t filled_microbatches = 0;
  const MicrobatchSource& source;
  double lr = 0, weight_decay = 0;
  bool stop_requested = false;  // this rank has been asked to stop (a signal)
};

struct StepResult {
  double loss = 0;       // mean over the target tokens of the global batch, before the update
  double grad_norm = 0;  // before clipping
  double loss_scale = 1;
  std::int64_t tokens = 0;          // target tokens of the global batch
  bool skipped = false;             // not finite: nothing was updated
  bool stop = false;                // some rank has been asked to stop
  std::string warning;              // to be said once; usually empty
  double waited_ms = 0;             // of the host for the device
  std::vector<ExpertLoad> experts;  // by layer; empty: the model has none
};

struct EngineOptions {
  ModelConfig model;
  DeviceKind device = DeviceKind::kCpu;
  bool fused = false;  // the spec family of training: fused or local
  DType dtype = DType::kF32;
  std::int64_t micro_batch = 1, sequence_length = 0;
  OptimizerConfig optimizer;
  std::int64_t seed = 1234;
  bool per_token_loss = true;
  TrainingConfig::OnNonfinite on_nonfinite = TrainingConfig::OnNonfinite::kStop;
  double label_smoothing = 0, z_loss = 0;
  Layout layout;
  bool sequence_parallel = false;
  // How sequences are cut over context-parallel ranks, and how attention reaches over the cuts: by layer, or
  // one for all.
  nn::SequenceOrder sequence_order = nn::SequenceOrder::kZigzag;
  std::vector<ContextMethod> context_methods{ContextMethod::kP2p};
  // Documents in a sequence: positions start anew in each; attention keeps them apart.
  bool document_positions = false, documents_apart = false;
  int tensor_parallel_chunks = 1;  // see ModelSpec
  RecomputeSpec recompute;
  bool distributed_optimizer = false;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;  // the next step's forward pass begins before all weights have arrived
  bool overlap_p2p = true;
  std::int64_t bucket_elems = 0;
  std::vector<std::string> freeze;  // see ModelSpec
  bool deterministic = false;       // see CoreAttentionSpec
  bool record = false;              // microbatches, where that is possible (see StepRecordings)
  bool training = true;             // false: no optimizer, no dropout (scoring)

  static EngineOptions from(const TrainConfig& config);
};

// How these options cut this model.
Layout layout_of(const TrainConfig& config);
Layout layout_of(const ParallelConfig& parallel, const ModelConfig& model);
// How they cut the experts of a layer.
ExpertSizes expert_sizes(const ParallelConfig& parallel);

class Engine {
 public:
  // `groups` outlive the engine.
  Engine(Lane& lane, const Groups& groups, const EngineOptions& options);
  ~Engine();

  // Draws every weight from the seed: the same on every layout. Collective.
  void initialize();
  // The model's weights from the optimizer's, after these have been loaded. Collective.
  void publish();
  // Waits for what a step has started and left to the next one. After the last step, and before the weights
  // are looked at.
  void flush();

  // What follows from the marks of parameters (see ParamTraits, LogicalTensor): which pieces of memory are
  // updated how, and count in the norm. For marks that have changed since the engine was made.
  void read_marks();

  // Lets `watch` see the actions of every pass from now on (see ExecutorOptions).
  void watch(std::function<void(const Action*)> watch) { watch_ = std::move(watch); }

  // A step of this many microbatches and an evaluation, of data and weights that mean nothing: so that all of
  // the device's kernels are loaded and all plans made before ranks begin to wait for each other on it. For
  // an engine whose groups are planned ones; it is of no use afterwards.
  void rehearse(std::int64_t microbatches, bool evaluation);

  StepResult train_step(const StepInput& input);
  // Sum of losses and number of target tokens over `microbatches` on every data-parallel rank; no dropout.
  struct LossSum {
    double sum = 0;
    std::int64_t tokens = 0;
  };
  LossSum evaluate(std::int64_t microbatches, const MicrobatchSource& source);
  // Forward and backward of `microbatches`, gradients of the whole batch divided by the target tokens.
  LossSum gradients(std::int64_t microbatches, const MicrobatchSource& source);
  // After gradients(): calls `body` with each whole gradient of the model, on world rank 0; none for frozen
  // tensors. Collective.
  void for_each_gradient(const std::function<void(const LogicalTensor&, const Tensor&)>& body);
  // The same with the model's weights.
  void for_each_weight(const std::function<void(const LogicalTensor&, const Tensor&)>& body);
  // Logits of one microbatch of every data-parallel rank, in their order: [dp · s, b, V] fp32 (fp64),
  // unpadded vocabulary; on world rank 0, undefined elsewhere. Collective.
  Tensor logits(const Batch& batch);
  // Whether other ranks hold other layers or other experts.
  bool part_of_model() const { return groups_.pp().size() > 1 || groups_.mesh().size(Axis::kEp) > 1; }

  const EngineOptions& options() const { return options_; }
  ParamSet& params() { return params_; }
  // Dense parameters first, then those of experts, where there are any.
  struct Partition {
    std::unique_ptr<ParamBuffer> buffer;
    std::unique_ptr<Optimizer> optimizer;  // null: no training
    std::unique_ptr<GradientNorm> norm;
    Communicator* replicas;  // the ranks that hold the same
  };
  const std::vector<Partition>& partitions() const { return partitions_; }
  // Of the dense parameters.
  ParamBuffer& buffer() { return *partitions_.front().buffer; }
  Optimizer* optimizer() { return partitions_.front().optimizer.get(); }
  std::vector<CheckpointPart> checkpoint_parts() const;
  LossScaler& loss_scaler() { return scaler_; }
  const ModelSpec& spec() const { return spec_; }
  // Bytes of saved activations of one microbatch by chunk of this rank, seen after the latest forward pass.
  const std::vector<std::size_t>& chunk_activation_bytes() const { return chunk_activation_bytes_; }

 private:
  // Stands between the model, which is built first, and the buffer of its parameters.
  struct Gate final : nn::WeightGate {
    void open(Lane& lane, int block) override {
      for (ParamBuffer* buffer : buffers) buffer->open(lane, block);
    }
    std::vector<ParamBuffer*> buffers;
  };

  // Of the parameters that this rank holds for good.
  std::pair<const Param*, const LogicalTensor*> find_part(const std::string& name) const;
  void for_each_whole(bool gradients, const std::function<void(const LogicalTensor&, const Tensor&)>& body);
  Tensor room_for_whole(const LogicalTensor& tensor, bool gradients);
  // Of this rank's stage and expert-parallel rank, whole on all ranks of `cut`.
  Tensor local_piece(const LogicalTensor& tensor, Communicator& cut, bool gradients);
  // On world rank 0, and undefined on some others.
  Tensor whole_of_stage(const LogicalTensor& tensor, int pp, bool gradients);
  Tensor whole_of_expert(const LogicalTensor& tensor, int pp, bool gradients);
  // This rank's part of the logits of one microbatch, on the last stage; undefined elsewhere.
  Tensor local_logits(const Batch& batch);
  // Parts of sequences as dp_cp() gathers them, [dp · cp · s/cp, b, ...] -> [dp · s, b, ...] in order.
  Tensor whole_sequences(const Tensor& parts);
  Microbatch make_microbatch(const Batch& batch, std::int64_t iteration, bool keep);
  void add_partition(bool experts);
  std::unique_ptr<GradientNorm> make_norm(const Partition& partition);
  // Σ g² by block of all partitions, on the device [blocks] f64. Collective.
  Tensor sums_of_squares();
  void start_gather();
  DrainPoint drain_point() const;
  MessageShape message() const;
  PipelineShape pipeline(std::int64_t microbatches, bool forward_only) const;
  void run(const PipelineShape& shape, std::vector<Stage*> stages);
  // A forward-only pass; body(chunk, microbatch, received) for every one, its result is sent on.
  void run_forward(std::int64_t microbatches,
                   const std::function<Tensor(std::size_t, int, const Tensor&)>& body);
  const std::vector<std::unique_ptr<GptModel>>& evaluation_models() const;

  // What this rank's microbatches gave: Σ losses, on the device [1] f64, and their target tokens.
  struct Passed {
    Tensor loss;
    std::int64_t tokens = 0;
  };
  Passed nothing_passed();
  // Of all ranks, on the device; undefined: the model has no experts. Collective.
  Tensor sum_of_router_statistics();
  void add_losses(Passed& passed, const Microbatch& mb);
  // Sums over the world, in which each number counts once: [3] f64 on the device, and as numbers.
  struct WorldSums {
    double loss = 0, tokens = 0, stop = 0;
  };
  Tensor sum_over_ranks(const Passed& mine, bool stop);
  WorldSums read(const Tensor& sums);
  // `filled`: microbatches of all ranks that hold samples.
  Passed forward_backward(std::int64_t iteration, std::int64_t microbatches, std::int64_t filled,
                          const MicrobatchSource& source, bool reduce = true);
  // Whether microbatches can be recorded at all: nothing in them but the data changes from step to step
  // (dropout's key does), and no rank talks to another.
  bool may_record() const;
  // Whether this microbatch of a step needs no other rank.
  bool stays_on_device(std::int64_t microbatch, std::int64_t microbatches) const;
  void finalize();
  // Looks for the first part of the model whose output is not finite, microbatch by microbatch. On the rank
  // that is to speak: "microbatch 3 of this rank first shows a NaN or infinity in layer 1"; empty on all
  // others. Collective.
  std::string first_nonfinite_place(std::int64_t iteration, std::int64_t microbatches,
                                    const MicrobatchSource& source);
  // Does the step's backward pass again without its sums over ranks, to see whose gradient is not finite:
  // "a.b of this rank", the first in the order of the backward pass (what comes after it is spoilt by it), on
  // the rank that is to speak; empty on all others. Collective.
  std::string first_nonfinite_gradient(const StepInput& input);
  // The largest number of the world is this rank's.
  bool speaks(double number);
  // Stops the run, or says that the step is left out, with the reason. Collective.
  void stop_for_nonfinite(const StepInput& input, const StepResult& result);
  void say_skipped(const StepInput& input, const StepResult& result);
  std::string reason(const StepInput& input, const StepResult& result);

  Lane& lane_;
  const Groups& groups_;
  EngineOptions options_;
  MicrobatchFeed feed_;
  ModelSpec spec_;
  ParamSet params_;
  Gate gate_;
  std::vector<std::unique_ptr<GptModel>> models_, evaluation_models_;  // by chunk
  std::vector<Partition> partitions_;
  std::unique_ptr<StepRecordings> recordings_;  // null: every operation is started by the host, each time
  Tensor router_statistics_;                    // see BuildContext; undefined: the model has no experts
  LossScaler scaler_;
  bool dynamic_scale_ = false;
  Batch host_;
  std::function<void(const Action*)> watch_;
  bool skipped_before_ = false;  // the step before this one was left out
  std::vector<std::size_t> chunk_activation_bytes_;
};

}  // namespace weft
