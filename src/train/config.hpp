// TrainConfig: everything a run is asked for, as plain values under Megatron's option names and with its
// defaults unless a comment says otherwise. options.hpp binds the command line, TOML files and presets to it;
// the trainer reads it. A value that was not given and has no default of its own is 0, -1 or empty, as its
// comment says.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/mpi/launch_choice.hpp"
#include "model/config.hpp"
#include "model/stage_split.hpp"
#include "pipeline/schedules.hpp"

namespace weft {

struct ParallelConfig {
  using Launcher = LauncherChoice;
  enum class Device { kAuto, kCpu, kCuda };  // auto: cuda where the build and the machine have it
  using Schedule = PipelineSchedule;
  enum class RecomputeGranularity { kNone, kFull, kSelective };
  enum class CudaGraphImpl { kNone, kLocal };
  enum class RecomputeMethod { kNotGiven, kUniform, kBlock };

  Launcher launcher = Launcher::kAuto;
  Device device = Device::kAuto;
  std::int64_t ranks = 0;  // 0: what the layout needs, that is dp = 1 (under MPI: its world size)
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t context_parallel_size = 1;
  enum class SequenceOrder { kAuto, kZigzag, kContiguous };
  std::vector<std::string> cp_comm_type{"p2p"};  // one, or one for each layer
  std::vector<std::string> hierarchical_context_parallel_sizes;
  SequenceOrder cp_sequence_order = SequenceOrder::kAuto;
  std::int64_t expert_model_parallel_size = 1;
  std::int64_t expert_tensor_parallel_size = 0;  // 0: as tensor_model_parallel_size
  bool use_tp_pp_dp_mapping = false;
  bool sequence_parallel = false;
  bool use_distributed_optimizer = false;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  std::int64_t ddp_bucket_size = 0;  // elements; 0: max(40 million, 1 million · dp)
  Schedule pipeline_schedule = Schedule::k1F1B;
  std::int64_t num_virtual_stages_per_pipeline_rank = 1;              // 1 may be left to resolved()
  std::int64_t num_layers_per_virtual_pipeline_stage = 0;             // the same said by layers; 0: not given
  std::int64_t microbatch_group_size_per_virtual_pipeline_stage = 0;  // 0: pipeline_model_parallel_size
  std::int64_t decoder_first_pipeline_num_layers = 0;                 // 0: as many as the other ranks
  std::int64_t decoder_last_pipeline_num_layers = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::string pipeline_model_parallel_layout;  // see StageSplit
  bool overlap_p2p_communication = true;       // --no-overlap-p2p-communication
  bool tp_comm_overlap = false;
  CudaGraphImpl cuda_graph_impl = CudaGraphImpl::kLocal;
  RecomputeGranularity recompute_granularity = RecomputeGranularity::kNone;
  RecomputeMethod recompute_method = RecomputeMethod::kNotGiven;
  std::int64_t recompute_num_layers = 0;  // uniform: of a group; block: of each stage; 0: not given
  std::vector<std::string> recompute_modules{"core_attn"};
  double distributed_timeout_seconds = 600;

  bool operator==(const ParallelConfig&) const = default;
};

struct OptimizerConfig {
  enum class Kind { kAdam, kSgd };
  enum class DecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
  enum class WsdStyle { kExponential, kLinear, kCosine, kMinusSqrt };
  enum class IncrStyle { kConstant, kLinear, kCosine };

  Kind optimizer = Kind::kAdam;
  double lr = -1;  // must be given
  double min_lr = 0;
  DecayStyle lr_decay_style = DecayStyle::kLinear;
  std::int64_t lr_decay_iters = 0;    // 0: train_iters
  std::int64_t lr_decay_samples = 0;  // with train_samples; 0: train_samples
  std::int64_t lr_warmup_iters = 0;
  std::int64_t lr_warmup_samples = 0;
  double lr_warmup_fraction = 0;  // of the decay length; 0: the two above
  double lr_warmup_init = 0;
  WsdStyle lr_wsd_decay_style = WsdStyle::kExponential;
  std::int64_t lr_wsd_decay_iters = 0;
  std::int64_t lr_wsd_decay_samples = 0;

  double weight_decay = 0.01;
  double start_weight_decay = -1;  // -1: weight_decay
  double end_weight_decay = -1;    // -1: weight_decay
  IncrStyle weight_decay_incr_style = IncrStyle::kConstant;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double clip_grad = 1.0;  // 0: no clipping

  // fp16 only.
  double loss_scale = 0;  // constant; 0: dynamic
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1;
  std::int64_t loss_scale_window = 1000;
  std::int64_t hysteresis = 2;

  bool operator==(const OptimizerConfig&) const = default;
};

// Exactly one source: data_path, text_file or batches.
struct DataConfig {
  std::vector<std::string> data_path;  // PREFIX, or a blend: w1 p1 w2 p2 ...
  std::string text_file;
  std::string batches;             // FILE.safetensors
  std::string split = "969,30,1";  // training, validation, test
  std::string data_cache_path;     // empty: beside the data
  std::int64_t seq_length = 0;     // 0: must be given, except that batches have their own
  std::string tokenizer_model;     // tokenizer.json, or the folder it is in
  bool eod_mask_loss = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;

  bool operator==(const DataConfig&) const = default;
};

struct TrainingConfig {
  enum class Precision { kFp32, kBf16, kFp16, kFp64 };
  enum class OnNonfinite { kStop, kSkip };

  std::int64_t micro_batch_size = 1;                // Megatron has no default
  std::int64_t global_batch_size = 0;               // 0: micro_batch_size · dp (with batches: theirs)
  std::array<std::int64_t, 3> rampup_batch_size{};  // start, increment, samples; zeros: none
  std::int64_t train_iters = 0;  // one of these two must be given, except that batches have their own number
  std::int64_t train_samples = 0;
  std::int64_t exit_interval = 0;  // stop, with a save, when the iteration divides by it; 0: never
  std::int64_t eval_interval = 1000;
  std::int64_t eval_iters = 100;
  bool fp32 = false;  // what CPUs do when nothing is said; on GPUs that is bf16
  bool bf16 = false;
  bool fp16 = false;
  bool fp64 = false;  // CPU only, for derivative checks
  std::int64_t seed = 1234;
  bool calculate_per_token_loss = true;  // Megatron: off
  OnNonfinite on_nonfinite = OnNonfinite::kStop;
  double label_smoothing = 0;
  double z_loss_coeff = 0;
  bool strict_sequence_length = false;
  bool deterministic_mode = false;
  std::vector<std::string> freeze;  // patterns of tensors that are not trained, see ModelSpec
  std::int64_t cpu_threads = 0;     // per rank; 0: cores / ranks of this machine

  // At most one of the four flags is set in a config that passes problems_of.
  Precision precision() const {
    return fp64 ? Precision::kFp64 : fp16 ? Precision::kFp16 : bf16 ? Precision::kBf16 : Precision::kFp32;
  }
  bool operator==(const TrainingConfig&) const = default;
};

struct CheckpointConfig {
  std::string save;
  std::string load;                // a weft checkpoint (any layout) or a Hugging Face folder
  std::int64_t save_interval = 0;  // 0: only at the end
  bool async_save = false;
  std::int64_t keep_last = 0;  // 0: all
  bool finetune = false;       // weights only: iteration, optimizer and random state start anew
  bool no_load_optim = false;
  bool no_load_rng = false;
  bool no_save_optim = false;
  bool override_opt_param_scheduler = false;  // the given learning-rate values win over the checkpoint's
  bool use_checkpoint_opt_param_scheduler = false;  // the checkpoint's win; neither: they must agree

  bool operator==(const CheckpointConfig&) const = default;
};

struct LogConfig {
  enum class Progress { kAuto, kBar, kLines };  // auto: bar on a terminal

  std::int64_t log_interval = 100;
  std::string metrics;  // FILE.jsonl
  std::string tensorboard_dir;
  std::string trace;                  // FILE.json
  std::int64_t trace_start_step = 3;  // of this run, from 1
  std::int64_t trace_steps = 2;
  Progress progress = Progress::kAuto;

  bool operator==(const LogConfig&) const = default;
};

struct TrainConfig {
  ModelConfig model;
  ParallelConfig parallel;
  OptimizerConfig optimizer;
  DataConfig data;
  TrainingConfig training;
  CheckpointConfig checkpoint;
  LogConfig log;

  bool operator==(const TrainConfig&) const = default;
};

// Fills in what follows from other values (model defaults, positions from seq_length, batch from dp, decay
// length from train_iters, ...). Idempotent; leaves alone what only the data can tell (batches' sizes, a
// tokenizer's vocabulary).
TrainConfig resolved(TrainConfig config);

// ranks the layout needs for one data-parallel replica (tp · pp · cp), the world (ranks, or that product),
// and dp = world / product (rounded down where problems_of finds that it does not divide).
std::int64_t model_parallel_size(const ParallelConfig& parallel);
std::int64_t world_size(const ParallelConfig& parallel);
std::int64_t data_parallel_size(const ParallelConfig& parallel);

// Stages on each rank: num_virtual_stages_per_pipeline_rank, or what follows from
// num_layers_per_virtual_pipeline_stage, from the layout string or from the schedule (zb-v: 2).
std::int64_t virtual_stages(const TrainConfig& config);
// How the layers are split, and the shape of the pipeline. While --batches have not said their size, the
// number of microbatches is unknown: the shape is then forward_only, which any number suits.
StageSplit stage_split(const TrainConfig& config);
PipelineShape pipeline_shape(const TrainConfig& config);

// The flags that are on of those that go by where documents end; empty: none.
std::string document_flags(const DataConfig& data);

// Every contradiction between options, in a fixed order, each naming all options and numbers concerned;
// empty: fine. Looks at values only: no file, device or other rank.
std::vector<std::string> problems_of(const TrainConfig& config);
// Of these, what concerns the layout alone: ranks, sizes that must divide, the pipeline and its split.
std::vector<std::string> layout_problems_of(const TrainConfig& config);
// What is accepted but has no effect (sequence parallelism over one rank, ...): a line each, to be said once.
std::vector<std::string> notes_of(const TrainConfig& config);
// What this build cannot run yet although the option is known: a line each.
std::vector<std::string> unsupported_yet(const TrainConfig& config);

}  // namespace weft
