// Engine: one rank's model, memory and optimizer, and what is done with them: a training step, an evaluation,
// scoring. The same code runs on a meta lane, which is how the plan knows the size of the arena to the byte.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/loader.hpp"
#include "data_parallel/param_buffer.hpp"
#include "model/gpt_model.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/optimizer.hpp"
#include "train/config.hpp"

namespace weft {

// Threads that each rank may use inside operations: `asked`, or where that is 0 its share of this machine's
// cores.
int threads_per_rank(std::int64_t asked, std::int64_t ranks);

// The communicators of a rank, by mesh axis.
struct Groups {
  Communicator& world;
  Communicator& dp;
  Communicator& tp;
};

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
  std::int64_t tokens = 0;  // target tokens of the global batch
  bool skipped = false;     // not finite: nothing was updated
  bool stop = false;        // some rank has been asked to stop
  std::string warning;      // to be said once; usually empty
};

struct EngineOptions {
  ModelConfig model;
  DType dtype = DType::kF32;
  std::int64_t micro_batch = 1, sequence_length = 0;
  OptimizerConfig optimizer;
  std::int64_t seed = 1234;
  bool per_token_loss = true;
  TrainingConfig::OnNonfinite on_nonfinite = TrainingConfig::OnNonfinite::kStop;
  double label_smoothing = 0, z_loss = 0;
  bool overlap_grad_reduce = false;
  std::int64_t bucket_elems = 0;
  bool training = true;  // false: no optimizer, no dropout (scoring)

  static EngineOptions from(const TrainConfig& config);
};

class Engine {
 public:
  Engine(Lane& lane, const Groups& groups, const EngineOptions& options);
  ~Engine();

  // Draws every weight from the seed: the same on every layout.
  void initialize();

  StepResult train_step(const StepInput& input);
  // Sum of losses and number of target tokens over `microbatches` on every data-parallel rank; no dropout.
  struct LossSum {
    double sum = 0;
    std::int64_t tokens = 0;
  };
  LossSum evaluate(std::int64_t microbatches, const MicrobatchSource& source);
  // Forward and backward of `microbatches`, gradients reduced over the group and divided by the target
  // tokens.
  LossSum gradients(std::int64_t microbatches, const MicrobatchSource& source);
  // Logits of one microbatch, gathered over tp: [s, b, V] fp32 (fp64), unpadded vocabulary. Collective over
  // tp.
  Tensor logits(const Batch& batch);

  const EngineOptions& options() const { return options_; }
  ParamSet& params() { return params_; }
  ParamBuffer& buffer() { return *buffer_; }
  Optimizer* optimizer() { return optimizer_.get(); }
  LossScaler& loss_scaler() { return scaler_; }
  const ModelSpec& spec() const { return spec_; }
  // Bytes of saved activations of one microbatch, seen after the latest forward pass.
  std::size_t activation_bytes() const { return activation_bytes_; }

 private:
  Microbatch make_microbatch(const Batch& batch, std::int64_t iteration, bool keep);
  // Σ over the data-parallel group of a few numbers.
  std::vector<double> sum_over_ranks(std::vector<double> values);
  // `filled`: microbatches of all ranks that hold samples.
  LossSum forward_backward(std::int64_t iteration, std::int64_t microbatches, std::int64_t filled,
                           const MicrobatchSource& source);
  void finalize_gradients();
  [[noreturn]] void stop_for_nonfinite_loss(std::int64_t iteration, const MicrobatchSource& source);
  // "microbatch 3 of this rank first shows ... in layer 1", of this rank's first microbatch that is not
  // finite.
  std::string first_nonfinite_place(std::int64_t iteration, const MicrobatchSource& source);
  // The first in the order of the backward pass: what comes after it is spoilt by it.
  std::string first_nonfinite_gradient();
  // Says why a step is left out; of steps in a row the first only.
  void say_skipped(const StepInput& input, const StepResult& result);

  Lane& lane_;
  Groups groups_;
  EngineOptions options_;
  ModelSpec spec_;
  ParamSet params_;
  std::unique_ptr<GptModel> model_, evaluation_model_;
  std::unique_ptr<ParamBuffer> buffer_;
  std::unique_ptr<Optimizer> optimizer_;
  LossScaler scaler_;
  bool dynamic_scale_ = false;
  Batch host_;
  std::int64_t first_bad_microbatch_ = -1;
  bool skipped_before_ = false;  // the step before this one was left out
  std::size_t activation_bytes_ = 0;
};

}  // namespace weft
