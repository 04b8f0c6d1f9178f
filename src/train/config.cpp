#include "train/config.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "core/check.hpp"
#include "train/context_parallel.hpp"
#include "train/freeze.hpp"

namespace weft {
namespace {

// Samples of one forward pass over all data-parallel ranks.
std::int64_t samples_of_pass(const TrainConfig& c) {
  return c.training.micro_batch_size * std::max<std::int64_t>(data_parallel_size(c.parallel), 1);
}

// 0: given batches have not said it yet.
std::int64_t global_batch(const TrainConfig& c) {
  const bool follows = c.training.global_batch_size == 0 && c.data.batches.empty();
  return follows ? samples_of_pass(c) : c.training.global_batch_size;
}

// What counts as layers when stages are cut alike.
std::int64_t layers_to_split(const TrainConfig& c) {
  return c.model.num_layers + (c.parallel.account_for_embedding_in_pipeline_split ? 1 : 0) +
         (c.parallel.account_for_loss_in_pipeline_split ? 1 : 0);
}

// Options that make stages of unequal size.
bool uneven(const ParallelConfig& p) {
  return p.decoder_first_pipeline_num_layers != 0 || p.decoder_last_pipeline_num_layers != 0 ||
         !p.pipeline_model_parallel_layout.empty();
}

// num_layers_per_virtual_pipeline_stage says how many stages there are, without a contradiction.
bool counted_by_layers(const TrainConfig& c) {
  const ParallelConfig& p = c.parallel;
  return p.num_layers_per_virtual_pipeline_stage > 0 && p.num_virtual_stages_per_pipeline_rank == 1 &&
         !uneven(p) && c.model.num_layers > 0 &&
         layers_to_split(c) % (p.pipeline_model_parallel_size * p.num_layers_per_virtual_pipeline_stage) == 0;
}

// Whether two names lead to one file, which need not be there yet.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(a, ignored), ignored) ==
         std::filesystem::weakly_canonical(std::filesystem::absolute(b, ignored), ignored);
}

// Collects contradictions, topic by topic.
class Problems {
 public:
  explicit Problems(const TrainConfig& config) : c_(config) {}

  std::vector<std::string> collect() {
    model();
    if (list_.empty()) freeze();
    source();
    batch();
    precision();
    layout();
    pipeline();
    recompute();
    schedule();
    checkpoint();
    log();
    return std::move(list_);
  }

  std::vector<std::string> collect_layout() {
    layout();
    pipeline();
    return std::move(list_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    list_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // A model may come whole from the folder of --load.
  bool model_is_loaded() const {
    return !c_.checkpoint.load.empty() && c_.model.num_layers == 0 && c_.model.hidden_size == 0 &&
           c_.model.num_attention_heads == 0;
  }

  void model() {
    if (model_is_loaded()) return;
    ModelConfig m = c_.model;
    const auto needed = [&](std::int64_t& value, const char* option, std::int64_t stand_in) {
      if (value != 0) return;
      add("{} must be given, by itself or with a --preset", option);
      value = stand_in;
    };
    needed(m.num_layers, "--num-layers", 1);
    const std::int64_t heads = std::max<std::int64_t>(m.num_attention_heads, 1);
    needed(m.hidden_size, "--hidden-size", heads * 64);
    needed(m.num_attention_heads, "--num-attention-heads", 1);
    const bool vocabulary_follows = !c_.data.tokenizer_model.empty() && c_.data.batches.empty();
    if (m.vocab_size == 0 && (vocabulary_follows || !c_.checkpoint.load.empty())) m.vocab_size = 1;
    if (m.vocab_size == 0) {
      add("--vocab-size must be given, or a --tokenizer-model that says it");
      m.vocab_size = 1;
    }
    if (m.max_position_embeddings == 0)
      m.max_position_embeddings = std::max<std::int64_t>(c_.data.seq_length, 1);
    const std::vector<std::string> own = problems_of(m);
    std::copy(own.begin(), own.end(), std::back_inserter(list_));
    const std::int64_t positions = m.max_position_embeddings, length = c_.data.seq_length;
    if (length > positions) {
      if (m.position_embedding == PositionEmbedding::kLearnedAbsolute) {
        add("--seq-length {} is beyond --max-position-embeddings {}, and positions are learned "
            "(--position-embedding-type learned_absolute): there is no embedding for positions from {} on",
            length, positions, positions);
      } else if (c_.training.strict_sequence_length) {
        add("--seq-length {} is beyond --max-position-embeddings {} and --strict-sequence-length is on",
            length, positions);
      }
    }
  }

  // Of a model that is sound; sizes that are not known yet change no name.
  void freeze() {
    if (c_.training.freeze.empty() || model_is_loaded()) return;
    ModelConfig m = c_.model;
    if (m.vocab_size == 0) m.vocab_size = 1;
    if (m.max_position_embeddings == 0) m.max_position_embeddings = 1;
    const std::vector<std::string> own = freeze_problems(resolved(m), c_.training.freeze);
    std::copy(own.begin(), own.end(), std::back_inserter(list_));
  }

  void source() {
    const DataConfig& d = c_.data;
    std::string given;
    int sources = 0;
    const auto count = [&](bool is_given, const char* option, const std::string& value) {
      if (!is_given) return;
      given += fmt::format("{}{} {}", sources == 0 ? "" : ", ", option, value);
      ++sources;
    };
    count(!d.data_path.empty(), "--data-path", d.data_path.empty() ? "" : d.data_path.front());
    count(!d.text_file.empty(), "--text-file", d.text_file);
    count(!d.batches.empty(), "--batches", d.batches);
    if (sources == 0) add("no data: one of --data-path, --text-file and --batches must be given");
    if (sources > 1) add("data from more than one source: {}; only one is possible", given);
    if (d.seq_length == 0 && d.batches.empty() && sources > 0) add("--seq-length must be given");
    if (!d.text_file.empty() && d.tokenizer_model.empty()) {
      add("--text-file {} needs a --tokenizer-model (weft tokenizer train makes one)", d.text_file);
    }
    if (const std::string flags = document_flags(d); !flags.empty() && d.data_path.empty() && sources == 1) {
      add("{}: {} has no documents: weft data build makes a --data-path of them, with --append-eod", flags,
          given);
    }
    if (d.data_path.size() > 1 && d.data_path.size() % 2 != 0) {
      add("--data-path with {} words is neither one prefix nor pairs of weight and prefix",
          d.data_path.size());
    }
  }

  void batch() {
    const TrainingConfig& t = c_.training;
    const bool given = !c_.data.batches.empty();
    if (t.train_iters == 0 && t.train_samples == 0 && !given) {
      add("--train-iters or --train-samples must be given");
    }
    if (t.train_iters != 0 && t.train_samples != 0) {
      add("--train-iters {} and --train-samples {} are both given; only one is possible", t.train_iters,
          t.train_samples);
    }
    const auto [start, increment, samples] = t.rampup_batch_size;
    const std::int64_t first = start > 0 ? start : t.global_batch_size;
    if (t.train_samples > 0 && t.train_samples < first) {
      add("--train-samples {} is less than one step takes ({} {}): nothing would be trained", t.train_samples,
          start > 0 ? "--rampup-batch-size starts with" : "--global-batch-size", first);
    }
    if (start == 0 && increment == 0 && samples == 0) return;
    if (given) add("--rampup-batch-size and --batches: given batches have one size");
    const std::int64_t full = t.global_batch_size;
    if (full == 0) {
      add("--rampup-batch-size {} {} {} needs --global-batch-size, the size it ends with", start, increment,
          samples);
    } else if (start > full || increment < 1 || (full - start) % increment != 0) {
      add("--rampup-batch-size {} {} {}: steps of {} from {} do not reach --global-batch-size {}", start,
          increment, samples, increment, start, full);
    }
    if (t.train_samples == 0) add("--rampup-batch-size needs --train-samples: steps would differ in size");
  }

  void precision() {
    const TrainingConfig& t = c_.training;
    std::string given;
    int flags = 0;
    for (const auto& [is_given, option] : {std::pair(t.fp32, "--fp32"), std::pair(t.bf16, "--bf16"),
                                           std::pair(t.fp16, "--fp16"), std::pair(t.fp64, "--fp64")}) {
      if (!is_given) continue;
      given += (flags == 0 ? "" : " and ") + std::string(option);
      ++flags;
    }
    if (flags > 1) add("{} are both on: a run has one precision", given);
    if (t.fp64 && c_.parallel.device == ParallelConfig::Device::kCuda)
      add("--fp64 runs on --device cpu only, not cuda");
  }

  void layout() {
    const ParallelConfig& p = c_.parallel;
    const std::int64_t tp = p.tensor_model_parallel_size, cp = p.context_parallel_size,
                       pp = p.pipeline_model_parallel_size;
    const std::int64_t product = model_parallel_size(p);
    if (p.ranks > 0 && p.ranks % product != 0) {
      add("--ranks {} is not divisible by {} = --tensor-model-parallel-size {} x "
          "--pipeline-model-parallel-size {} x "
          "--context-parallel-size {}",
          p.ranks, product, tp, pp, cp);
    }
    experts();
    const std::vector<std::string> context = context_problems(c_);
    std::copy(context.begin(), context.end(), std::back_inserter(list_));
    if (p.sequence_parallel && cp == 1 && c_.data.seq_length % tp != 0) {
      add("--sequence-parallel: --seq-length {} is not divisible by --tensor-model-parallel-size {}",
          c_.data.seq_length, tp);
    }
    if (p.tp_comm_overlap && tp > 1 && !p.sequence_parallel) {
      add("--tp-comm-overlap with --tensor-model-parallel-size {} needs --sequence-parallel", tp);
    }
    if (model_is_loaded() || tp == 1) return;
    const ModelConfig m = resolved(c_.model);
    const auto divides = [&](const char* option, std::int64_t value) {
      if (value % tp != 0)
        add("{} {} is not divisible by --tensor-model-parallel-size {}", option, value, tp);
    };
    divides("--num-attention-heads", m.num_attention_heads);
    divides("--ffn-hidden-size", m.ffn_hidden_size);
    if (m.num_query_groups > 0 && m.num_query_groups % tp != 0 && tp % m.num_query_groups != 0) {
      add("--num-query-groups {} and --tensor-model-parallel-size {}: neither divides the other",
          m.num_query_groups, tp);
    }
  }

  void experts() {
    const ParallelConfig& p = c_.parallel;
    const std::int64_t ep = p.expert_model_parallel_size, etp = p.expert_tensor_parallel_size;
    if (model_is_loaded()) return;
    const MoeConfig& moe = resolved(c_.model).moe;
    if (moe.num_experts == 0) {
      if (ep > 1) add("--expert-model-parallel-size {} needs experts: add --num-experts", ep);
      if (etp > 0 && etp != p.tensor_model_parallel_size) {
        add("--expert-tensor-parallel-size {} needs experts: add --num-experts", etp);
      }
      return;
    }
    const std::int64_t cut = etp > 0 ? etp : p.tensor_model_parallel_size;
    if (moe.num_experts % ep != 0) {
      add("--num-experts {} is not divisible by --expert-model-parallel-size {}: every rank has as many of "
          "them",
          moe.num_experts, ep);
    }
    if (moe.ffn_hidden_size % cut != 0) {
      add("--moe-ffn-hidden-size {} is not divisible by --expert-tensor-parallel-size {}",
          moe.ffn_hidden_size, cut);
    }
    const std::int64_t tp = p.tensor_model_parallel_size;
    if (moe.shared_expert_size % tp != 0) {
      add("--moe-shared-expert-intermediate-size {} is not divisible by --tensor-model-parallel-size {}",
          moe.shared_expert_size, tp);
    }
    const std::int64_t of_stage = world_size(p) / p.pipeline_model_parallel_size;
    if (of_stage % (ep * cut) != 0) {
      add("{} ranks of a pipeline stage are not divisible by {} = --expert-model-parallel-size {} x "
          "--expert-tensor-parallel-size {}",
          of_stage, ep * cut, ep, cut);
    }
  }

  void pipeline() {
    const ParallelConfig& p = c_.parallel;
    const std::int64_t pp = p.pipeline_model_parallel_size;
    if (p.num_layers_per_virtual_pipeline_stage > 0 && !layers_per_stage()) return;
    const PipelineShape shape = pipeline_shape(c_);
    const ScheduleForm& form = form_of(shape.schedule);
    if (pp == 1 && form.chunks == 0) {
      add("--pipeline-schedule {} needs --pipeline-model-parallel-size above 1 (it is 1)", form.name);
    } else if (pp == 1 && p.num_virtual_stages_per_pipeline_rank > 1 && form.chunks == 1) {
      add("--num-virtual-stages-per-pipeline-rank {} needs --pipeline-model-parallel-size above 1 (it is 1)",
          p.num_virtual_stages_per_pipeline_rank);
    } else {
      microbatches(shape);
    }
    if (c_.model.num_layers == 0) return;  // its own problem, or to be loaded
    const std::vector<std::string> split = problems_of(stage_split(c_));
    std::copy(split.begin(), split.end(), std::back_inserter(list_));
  }

  // False: what follows cannot be judged.
  bool layers_per_stage() {
    const ParallelConfig& p = c_.parallel;
    const std::int64_t pp = p.pipeline_model_parallel_size, n = p.num_layers_per_virtual_pipeline_stage,
                       v = p.num_virtual_stages_per_pipeline_rank;
    if (v > 1) {
      add("--num-layers-per-virtual-pipeline-stage {} and --num-virtual-stages-per-pipeline-rank {} are both "
          "given; only one is possible",
          n, v);
      return false;
    }
    if (uneven(p)) {
      add("--num-layers-per-virtual-pipeline-stage {} is for stages of equal size: with "
          "--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers or "
          "--pipeline-model-parallel-layout give --num-virtual-stages-per-pipeline-rank",
          n);
      return false;
    }
    if (c_.model.num_layers > 0 && !counted_by_layers(c_)) {
      add("--num-layers {}{} is not divisible by {} = --pipeline-model-parallel-size {} x "
          "--num-layers-per-virtual-pipeline-stage {}",
          c_.model.num_layers,
          layers_to_split(c_) == c_.model.num_layers
              ? ""
              : fmt::format(" ({} with the embedding or the loss counted as layers)", layers_to_split(c_)),
          pp * n, pp, n);
    }
    return counted_by_layers(c_);
  }

  // The schedule with every number of microbatches that the run will have.
  void microbatches(PipelineShape shape) {
    const std::int64_t pass = samples_of_pass(c_);
    const auto judge = [&](const std::string& batch) {
      PipelineOptionNames names;
      names.microbatches =
          fmt::format("{} over --micro-batch-size {} x data parallel {}: number of microbatches", batch,
                      c_.training.micro_batch_size, pass / c_.training.micro_batch_size);
      if (c_.parallel.num_layers_per_virtual_pipeline_stage > 0) {
        names.chunks = fmt::format("--num-layers-per-virtual-pipeline-stage {}, stages of a rank",
                                   c_.parallel.num_layers_per_virtual_pipeline_stage);
      }
      const std::vector<std::string> own = problems_of(shape, names);
      std::copy(own.begin(), own.end(), std::back_inserter(list_));
      return own.empty();
    };
    if (!judge(fmt::format("--global-batch-size {}", global_batch(c_)))) return;
    const auto [start, increment, samples] = c_.training.rampup_batch_size;
    if (start < 1 || increment < 1 || shape.schedule != PipelineSchedule::kInterleaved) return;
    // Sizes suit or not by their remainder, so that one round of remainders says all.
    std::int64_t left = pass * std::max<std::int64_t>(shape.group, shape.ranks) + 1;
    for (std::int64_t size = start; size < c_.training.global_batch_size && left > 0; size += increment) {
      shape.microbatches = static_cast<int>((size + pass - 1) / pass);
      if (!judge(fmt::format("--rampup-batch-size, which passes {},", size))) return;
      --left;
    }
  }

  void recompute() {
    using Granularity = ParallelConfig::RecomputeGranularity;
    const ParallelConfig& p = c_.parallel;
    const bool full = p.recompute_granularity == Granularity::kFull,
               selective = p.recompute_granularity == Granularity::kSelective;
    const bool method = p.recompute_method != ParallelConfig::RecomputeMethod::kNotGiven;
    const char* const name =
        p.recompute_method == ParallelConfig::RecomputeMethod::kBlock ? "block" : "uniform";
    const char* const granularity = selective ? "selective" : "none";
    if (full && !method) add("--recompute-granularity full needs --recompute-method uniform or block");
    if (full && p.recompute_num_layers == 0) {
      add("--recompute-granularity full needs --recompute-num-layers: layers of a group (uniform) or of each "
          "stage (block)");
    }
    if (!full && method) {
      add("--recompute-method {} needs --recompute-granularity full (it is {})", name, granularity);
    }
    if (!full && p.recompute_num_layers != 0) {
      add("--recompute-num-layers {} needs --recompute-granularity full (it is {})", p.recompute_num_layers,
          granularity);
    }
    std::string modules;
    for (const std::string& module : p.recompute_modules) modules += " " + module;
    if (!selective && p.recompute_modules != ParallelConfig{}.recompute_modules) {
      add("--recompute-modules{} needs --recompute-granularity selective (it is {})", modules,
          full ? "full" : "none");
    }
    for (const std::string& module : p.recompute_modules) {
      if (module == "core_attn" || module == "mlp" || module == "layernorm") continue;
      add("--recompute-modules {}: the modules of this model are core_attn, mlp and layernorm", module);
    }
  }

  void schedule() {
    const OptimizerConfig& o = c_.optimizer;
    const TrainingConfig& t = c_.training;
    if (o.lr < 0) add("--lr must be given");
    if (o.lr >= 0 && o.min_lr > o.lr) add("--min-lr {} is above --lr {}", o.min_lr, o.lr);
    if (o.lr >= 0 && o.lr_warmup_init > o.lr)
      add("--lr-warmup-init {} is above --lr {}", o.lr_warmup_init, o.lr);
    warm_up("iters", t.train_iters, o.lr_decay_iters, o.lr_warmup_iters, o.lr_wsd_decay_iters);
    warm_up("samples", t.train_samples, o.lr_decay_samples, o.lr_warmup_samples, o.lr_wsd_decay_samples);
    const bool by_samples = t.train_samples != 0;
    if (by_samples && (o.lr_decay_iters != 0 || o.lr_warmup_iters != 0 || o.lr_wsd_decay_iters != 0)) {
      add("--train-samples {} counts in samples: give --lr-decay-samples, --lr-warmup-samples and "
          "--lr-wsd-decay-samples in place of --lr-decay-iters {}, --lr-warmup-iters {} and "
          "--lr-wsd-decay-iters {}",
          t.train_samples, o.lr_decay_iters, o.lr_warmup_iters, o.lr_wsd_decay_iters);
    }
    if (!by_samples && (o.lr_decay_samples != 0 || o.lr_warmup_samples != 0 || o.lr_wsd_decay_samples != 0)) {
      add("--lr-decay-samples {}, --lr-warmup-samples {} and --lr-wsd-decay-samples {} need --train-samples",
          o.lr_decay_samples, o.lr_warmup_samples, o.lr_wsd_decay_samples);
    }
    const bool wsd = o.lr_decay_style == OptimizerConfig::DecayStyle::kWsd;
    if (wsd && o.lr_wsd_decay_iters == 0 && o.lr_wsd_decay_samples == 0) {
      add("--lr-decay-style WSD needs {}", by_samples ? "--lr-wsd-decay-samples" : "--lr-wsd-decay-iters");
    }
    const bool ramp = o.weight_decay_incr_style != OptimizerConfig::IncrStyle::kConstant;
    if (!ramp && (o.start_weight_decay >= 0 || o.end_weight_decay >= 0)) {
      const double start = o.start_weight_decay >= 0 ? o.start_weight_decay : o.weight_decay;
      const double end = o.end_weight_decay >= 0 ? o.end_weight_decay : o.weight_decay;
      if (start != end) {
        add("--start-weight-decay {} and --end-weight-decay {} differ, but --weight-decay-incr-style is "
            "constant",
            start, end);
      }
    }
    if (o.min_loss_scale > o.initial_loss_scale) {
      add("--min-loss-scale {} is above --initial-loss-scale {}", o.min_loss_scale, o.initial_loss_scale);
    }
  }

  void warm_up(const char* unit, std::int64_t total, std::int64_t decay, std::int64_t warmup,
               std::int64_t wsd) {
    if (warmup > 0 && c_.optimizer.lr_warmup_fraction > 0) {
      add("--lr-warmup-{} {} and --lr-warmup-fraction {} are both given; only one is possible", unit, warmup,
          c_.optimizer.lr_warmup_fraction);
    }
    const std::int64_t length = decay != 0 ? decay : total;
    const std::string whole = fmt::format("{}-{} {}", decay != 0 ? "--lr-decay" : "--train", unit, length);
    if (length > 0 && warmup > length) add("--lr-warmup-{} {} is longer than {}", unit, warmup, whole);
    if (length > 0 && wsd > length) add("--lr-wsd-decay-{} {} is longer than {}", unit, wsd, whole);
  }

  void checkpoint() {
    const CheckpointConfig& k = c_.checkpoint;
    if (k.save.empty()) {
      if (k.save_interval > 0) add("--save-interval {} needs --save DIR", k.save_interval);
      if (k.async_save) add("--async-save needs --save DIR");
      if (k.keep_last > 0) add("--keep-last {} needs --save DIR", k.keep_last);
    }
    if (k.override_opt_param_scheduler && k.use_checkpoint_opt_param_scheduler) {
      add("--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler are both on; only one is "
          "possible");
    }
  }

  void log() {
    const LogConfig& l = c_.log;
    if (!l.trace.empty() && !l.metrics.empty() && same_file(l.trace, l.metrics)) {
      add("--metrics {} and --trace {} are the same file; give each its own", l.metrics, l.trace);
    }
  }

  const TrainConfig& c_;
  std::vector<std::string> list_;
};

}  // namespace

std::string document_flags(const DataConfig& d) {
  std::string flags;
  for (const auto& [on, name] : {std::pair(d.reset_position_ids, "--reset-position-ids"),
                                 std::pair(d.reset_attention_mask, "--reset-attention-mask"),
                                 std::pair(d.eod_mask_loss, "--eod-mask-loss")}) {
    if (on) flags += (flags.empty() ? "" : ", ") + std::string(name);
  }
  return flags;
}

std::int64_t model_parallel_size(const ParallelConfig& p) {
  return p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size;
}

std::int64_t world_size(const ParallelConfig& p) {
  return p.ranks != 0 ? p.ranks : model_parallel_size(p);
}

std::int64_t data_parallel_size(const ParallelConfig& p) {
  return world_size(p) / model_parallel_size(p);
}

std::int64_t virtual_stages(const TrainConfig& c) {
  const ParallelConfig& p = c.parallel;
  const std::int64_t pp = p.pipeline_model_parallel_size;
  if (p.num_virtual_stages_per_pipeline_rank > 1) return p.num_virtual_stages_per_pipeline_rank;
  if (counted_by_layers(c)) return layers_to_split(c) / (pp * p.num_layers_per_virtual_pipeline_stage);
  // Only a schedule that takes several; any other is told that the layout has too many.
  if (const int fixed = form_of(p.pipeline_schedule).chunks; fixed > 0) return fixed;
  const std::int64_t stages = stages_of_layout(p.pipeline_model_parallel_layout);
  return stages > 0 && stages % pp == 0 ? stages / pp : 1;
}

StageSplit stage_split(const TrainConfig& c) {
  const ParallelConfig& p = c.parallel;
  return {.num_layers = c.model.num_layers,
          .ranks = p.pipeline_model_parallel_size,
          .chunks = virtual_stages(c),
          .v_shaped = form_of(p.pipeline_schedule).v_shaped,
          .decoder_first_pipeline_num_layers = p.decoder_first_pipeline_num_layers,
          .decoder_last_pipeline_num_layers = p.decoder_last_pipeline_num_layers,
          .account_for_embedding_in_pipeline_split = p.account_for_embedding_in_pipeline_split,
          .account_for_loss_in_pipeline_split = p.account_for_loss_in_pipeline_split,
          .pipeline_model_parallel_layout = p.pipeline_model_parallel_layout};
}

PipelineShape pipeline_shape(const TrainConfig& c) {
  const std::int64_t batch = global_batch(c), pass = samples_of_pass(c);
  PipelineShape shape{.schedule = c.parallel.pipeline_schedule,
                      .ranks = static_cast<int>(c.parallel.pipeline_model_parallel_size),
                      .chunks = static_cast<int>(virtual_stages(c)),
                      .group = static_cast<int>(c.parallel.microbatch_group_size_per_virtual_pipeline_stage)};
  // Batches of unknown size: any number of microbatches is as good, and none is judged.
  shape.forward_only = batch == 0;
  shape.microbatches = static_cast<int>(std::max<std::int64_t>((batch + pass - 1) / pass, 1));
  return shape;
}

TrainConfig resolved(TrainConfig c) {
  if (c.model.max_position_embeddings == 0) c.model.max_position_embeddings = c.data.seq_length;
  c.model = resolved(std::move(c.model));
  if (c.parallel.expert_tensor_parallel_size == 0) {
    c.parallel.expert_tensor_parallel_size = c.parallel.tensor_model_parallel_size;
  }
  const bool by_layers = counted_by_layers(c);
  c.parallel.num_virtual_stages_per_pipeline_rank = virtual_stages(c);
  if (by_layers) c.parallel.num_layers_per_virtual_pipeline_stage = 0;  // said by the line above
  const std::int64_t dp = std::max<std::int64_t>(data_parallel_size(c.parallel), 1);
  if (c.parallel.ddp_bucket_size == 0)
    c.parallel.ddp_bucket_size =
        std::max<std::int64_t>(40'000'000, 1'000'000 * dp * c.parallel.context_parallel_size);
  TrainingConfig& t = c.training;
  t.global_batch_size = global_batch(c);
  OptimizerConfig& o = c.optimizer;
  if (o.lr_decay_iters == 0) o.lr_decay_iters = t.train_iters;
  if (o.lr_decay_samples == 0) o.lr_decay_samples = t.train_samples;
  if (o.start_weight_decay < 0) o.start_weight_decay = o.weight_decay;
  if (o.end_weight_decay < 0) o.end_weight_decay = o.weight_decay;
  return c;
}

std::vector<std::string> problems_of(const TrainConfig& config) {
  return Problems(config).collect();
}

std::vector<std::string> layout_problems_of(const TrainConfig& config) {
  return Problems(config).collect_layout();
}

std::vector<std::string> notes_of(const TrainConfig& c) {
  std::vector<std::string> notes;
  const auto add = [&](std::string text) { notes.push_back(std::move(text)); };
  const ParallelConfig& p = c.parallel;
  const std::int64_t dp = data_parallel_size(p);
  if (p.sequence_parallel && p.tensor_model_parallel_size == 1) {
    add("--sequence-parallel has no effect with --tensor-model-parallel-size 1");
  }
  if (p.tp_comm_overlap && p.tensor_model_parallel_size == 1) {
    add("--tp-comm-overlap has no effect with --tensor-model-parallel-size 1");
  }
  if (const std::int64_t multiple = sequence_multiple(p), length = c.data.seq_length;
      p.context_parallel_size > 1 && length % multiple != 0) {
    add(fmt::format(
        "--seq-length {} is filled up to {} with tokens that count nowhere: --context-parallel-size {} "
        "needs a multiple of {}",
        length, (length + multiple - 1) / multiple * multiple, p.context_parallel_size, multiple));
  }
  if (p.use_distributed_optimizer && dp * p.context_parallel_size == 1) {
    add("--use-distributed-optimizer has no effect with one data-parallel rank");
  }
  if (p.overlap_param_gather && !p.use_distributed_optimizer) {
    add("--overlap-param-gather has no effect without --use-distributed-optimizer");
  }
  const TrainingConfig& t = c.training;
  const std::int64_t pass = t.micro_batch_size * dp;
  if (t.global_batch_size > 0 && t.global_batch_size % pass != 0) {
    add(fmt::format(
        "--global-batch-size {} is filled up to {} with rows that count nowhere: {} = --micro-batch-size {} "
        "x data parallel {} does not divide it",
        t.global_batch_size, (t.global_batch_size + pass - 1) / pass * pass, pass, t.micro_batch_size, dp));
  }
  if (c.checkpoint.finetune && c.checkpoint.load.empty()) add("--finetune has no effect without --load");
  return notes;
}

std::vector<std::string> unsupported_yet(const TrainConfig& c) {
  std::vector<std::string> list;
  const auto refuse = [&](bool wanted, const std::string& what) {
    if (wanted) list.push_back(what + ": this build cannot run it yet");
  };
  refuse(c.checkpoint.async_save, "--async-save");
  return list;
}

}  // namespace weft
