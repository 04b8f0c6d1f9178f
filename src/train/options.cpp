#include "train/options.hpp"

#include "train/launch.hpp"

#include <iterator>

namespace weft {
namespace {

// Counts that are no sizes of tensors (samples, tokens, seeds) may be beyond 2^31, and are exact as doubles.
constexpr std::int64_t kLargestCount = std::int64_t{1} << 53;
constexpr Integers kSize{.low = 1};
constexpr Integers kSizeOrNone{.low = 0};
constexpr Reals kTimeouts{.low = 0.001, .high = 1e9};  // they are counted in milliseconds
// Products of three of them fit 64 bits.
constexpr Integers kRanks{.low = 1, .high = std::int64_t{1} << 20};
constexpr Integers kCount{.low = 0, .high = kLargestCount};

void add_recompute_options(OptionSet& options, ParallelConfig& p) {
  using Granularity = ParallelConfig::RecomputeGranularity;
  options
      .choice("recompute-granularity", p.recompute_granularity,
              {{"none", Granularity::kNone},
               {"full", Granularity::kFull},
               {"selective", Granularity::kSelective}},
              "activations made again in backward in place of saved: of whole layers, or of some modules")
      .also({"activation-checkpointing", "gradient-checkpointing", "checkpoint-activations"});
  options.shorthand("recompute-activations", {{"recompute-granularity", "selective"}},
                    {{"recompute-granularity", "none"}}, "--recompute-granularity selective");
  using Method = ParallelConfig::RecomputeMethod;
  options
      .choice("recompute-method", p.recompute_method,
              {{"uniform", Method::kUniform}, {"block", Method::kBlock}},
              "full: groups of layers that save one input, or each of the first layers of a stage")
      .otherwise("must be given with full");
  options
      .integer("recompute-num-layers", p.recompute_num_layers, kSize,
               "full: layers of a group (uniform) or of each stage (block)")
      .otherwise("must be given with full");
  options.texts("recompute-modules", p.recompute_modules, "MODULE",
                "selective: of core_attn, mlp and layernorm; core_attn saves little, as attention is tiled");
}

}  // namespace

void add_model_options(OptionSet& options, ModelConfig& m) {
  options.topic("model");
  options.integer("num-layers", m.num_layers, kSize, "transformer layers")
      .also({"layers", "n-layers", "depth"});
  options.integer("hidden-size", m.hidden_size, kSize, "width of the residual stream")
      .also({"hidden", "d-model", "embedding-size", "n-embd"});
  options.integer("num-attention-heads", m.num_attention_heads, kSize, "query heads")
      .also({"heads", "num-heads"});
  options.integer("num-query-groups", m.num_query_groups, kSize, "heads of keys and values")
      .also({"num-key-value-heads", "kv-heads", "num-kv-heads"})
      .otherwise("as --num-attention-heads");
  options.shorthand("group-query-attention", {}, {},
                    "accepted for Megatron's scripts; --num-query-groups alone says it");
  options.integer("kv-channels", m.kv_channels, kSize, "size of a head")
      .also({"head-dim", "head-size"})
      .otherwise("hidden size / heads");
  options.integer("sliding-window", m.sliding_window, kSizeOrNone,
                  "keys that a query sees, its own the last of them; 0: all");
  options.integer("ffn-hidden-size", m.ffn_hidden_size, kSize, "inner width of the feed-forward layers")
      .also({"intermediate-size"})
      .otherwise("4 hidden; gated: 8/3 hidden in multiples of 64");
  options.integer("vocab-size", m.vocab_size, kSize, "tokens of the vocabulary, without padding")
      .otherwise("the tokenizer's");
  options.integer("make-vocab-size-divisible-by", m.make_vocab_size_divisible_by, kSize,
                  "the vocabulary is padded to a multiple of this times the tensor-parallel size; never "
                  "changes a number");
  options
      .integer("max-position-embeddings", m.max_position_embeddings, kSize,
               "longest sequence of learned positions")
      .otherwise("as --seq-length");
  options.choice("position-embedding-type", m.position_embedding,
                 {{"learned_absolute", PositionEmbedding::kLearnedAbsolute},
                  {"rope", PositionEmbedding::kRope},
                  {"none", PositionEmbedding::kNone}},
                 "how a token's position enters");
  options.real("rotary-base", m.rotary_base, Reals::positive(), "base of the rotary frequencies")
      .also({"rope-theta"});
  options.real("rotary-percent", m.rotary_percent, {.low = 0, .high = 1, .low_open = true},
               "share of a head's channels that is rotated");
  options.flag("rotary-interleaved", m.rotary_interleaved,
               "rotate neighbouring channels, not the two halves");
  options.choice("rope-scaling-type", m.rope_scaling.kind,
                 {{"none", RopeScaling::Kind::kNone},
                  {"linear", RopeScaling::Kind::kLinear},
                  {"llama3", RopeScaling::Kind::kLlama3},
                  {"yarn", RopeScaling::Kind::kYarn}},
                 "how rotary frequencies are changed for longer contexts");
  options.shorthand("use-rope-scaling", {{"rope-scaling-type", "llama3"}}, {{"rope-scaling-type", "none"}},
                    "--rope-scaling-type llama3");
  options.real("rope-scaling-factor", m.rope_scaling.factor, Reals::positive(), "how many times longer")
      .also({"rotary-scaling-factor", "yarn-rotary-scaling-factor"});
  options.real("rope-scaling-low-freq-factor", m.rope_scaling.low_freq_factor, Reals::positive(),
               "llama3 only");
  options.real("rope-scaling-high-freq-factor", m.rope_scaling.high_freq_factor, Reals::positive(),
               "llama3 only");
  options
      .integer("rope-scaling-original-max-position-embeddings",
               m.rope_scaling.original_max_position_embeddings, kSize, "llama3 and yarn: the shorter context")
      .also({"original-max-position-embeddings", "yarn-original-max-position-embeddings"});
  options
      .real("beta-fast", m.rope_scaling.beta_fast, Reals::positive(),
            "yarn only: channels that turn more often in the shorter context stay as they are")
      .also({"yarn-beta-fast"});
  options
      .real("beta-slow", m.rope_scaling.beta_slow, Reals::positive(),
            "yarn only: channels that turn less often there are slowed by the whole factor")
      .also({"yarn-beta-slow"});
  options.flag("yarn-correction-range-round-to-int", m.rope_scaling.truncate,
               "yarn only: the blend between them begins and ends at whole channels");
  options
      .real("mscale", m.rope_scaling.mscale, Reals::non_negative(),
            "yarn only: cos and sin times (0.1 mscale ln(factor) + 1) over the same of --mscale-all-dim")
      .also({"yarn-mscale"});
  options
      .real("mscale-all-dim", m.rope_scaling.mscale_all_dim, Reals::non_negative(),
            "yarn only: see --mscale; latent attention multiplies its scores by the square of it")
      .also({"yarn-mscale-all-dim"});
  options.real("rope-scaling-attention-factor", m.rope_scaling.attention_factor, Reals::non_negative(),
               "yarn only: cos and sin times this, whatever --mscale says; 0: not");
  options.choice("normalization", m.normalization,
                 {{"LayerNorm", Normalization::kLayerNorm}, {"RMSNorm", Normalization::kRmsNorm}},
                 "kind of norm");
  options
      .real("norm-epsilon", m.norm_epsilon, {.low = 0, .high = 1, .low_open = true, .high_open = true},
            "added to the variance")
      .also({"layernorm-epsilon", "rms-norm-eps"});
  std::vector<std::pair<std::string, ops::Activation>> activations;
  for (const ops::ActivationName& row : ops::kActivations) activations.emplace_back(row.name, row.value);
  options.choice("activation", m.activation, activations, "function of the feed-forward layers")
      .also({"activation-function", "hidden-act"});
  options.flag("gated-linear-unit", m.gated, "feed-forward f(gate) * up in place of f(x)").also({"glu"});
  options.shorthand("swiglu", {{"activation", "silu"}, {"gated-linear-unit", "true"}},
                    {{"activation", "gelu_tanh"}, {"gated-linear-unit", "false"}},
                    "--activation silu --gated-linear-unit");
  options.shorthand("squared-relu", {{"activation", "squared_relu"}, {"gated-linear-unit", "false"}},
                    {{"activation", "gelu_tanh"}}, "--activation squared_relu, not gated");
  options.flag("disable-bias-linear", m.add_bias_linear, "no biases in linear layers", false);
  options.flag("add-qkv-bias", m.add_qkv_bias, "biases of queries, keys and values all the same");
  options
      .flag("qk-layernorm", m.qk_layernorm,
            "a norm over each head of queries and keys, before positions enter")
      .also({"qk-norm"});
  add_latent_options(options, m.latent);
  options.flag("untie-embeddings-and-output-weights", m.tied, "an output layer with weights of its own",
               false);
  options.real("hidden-dropout", m.hidden_dropout, Reals::below_one(), "dropout in the residual stream");
  options.real("attention-dropout", m.attention_dropout, Reals::below_one(), "dropout of attention weights");
  options.real("init-method-std", m.init_method_std, Reals::non_negative(),
               "standard deviation of initial weights; outputs of a layer: over sqrt(2 layers)");
}

void add_parallel_options(OptionSet& options, ParallelConfig& p) {
  options.topic("parallel");
  options.choice("launcher", p.launcher,
                 {{"auto", ParallelConfig::Launcher::kAuto},
                  {"threads", ParallelConfig::Launcher::kThreads},
                  {"mpi", ParallelConfig::Launcher::kMpi}},
                 "ranks are threads of this process, or processes of mpirun or srun");
  options
      .integer("ranks", p.ranks, {.low = 0, .high = kRanks.high},
               "ranks in all; data parallel size = ranks / (tp pp cp)")
      .also({"world-size", "num-ranks", "nproc", "data-parallel-size", "dp"})
      .otherwise("what the layout needs");
  options.choice("device", p.device,
                 {{"auto", ParallelConfig::Device::kAuto},
                  {"cpu", ParallelConfig::Device::kCpu},
                  {"cuda", ParallelConfig::Device::kCuda}},
                 "auto: cuda where build and machine have it");
  options
      .integer("tensor-model-parallel-size", p.tensor_model_parallel_size, kRanks,
               "tp: each matrix cut over N ranks")
      .also({"tp", "tensor-parallel"});
  options
      .integer("pipeline-model-parallel-size", p.pipeline_model_parallel_size, kRanks,
               "pp: layers cut into N stages")
      .also({"pp", "pipeline-parallel"});
  options
      .integer("context-parallel-size", p.context_parallel_size, kRanks, "cp: each sequence cut over N ranks")
      .also({"cp", "context-parallel"});
  options
      .texts(
          "cp-comm-type", p.cp_comm_type, "TYPE",
          "how attention reaches over the cuts, of all layers or one word for each: p2p sends keys and "
          "values "
          "round a ring, all_gather gathers them, a2a exchanges positions for heads, a2a+p2p does so between "
          "neighbours with rings over the groups")
      .also({"context-parallel-method", "ulysses", "ring-attention"});
  options
      .texts("hierarchical-context-parallel-sizes", p.hierarchical_context_parallel_sizes, "N",
             "a2a+p2p: neighbours that exchange heads, and groups of them in a ring")
      .otherwise("none");
  options.choice("cp-sequence-order", p.cp_sequence_order,
                 {{"auto", ParallelConfig::SequenceOrder::kAuto},
                  {"zigzag", ParallelConfig::SequenceOrder::kZigzag},
                  {"contiguous", ParallelConfig::SequenceOrder::kContiguous}},
                 "which part of a sequence a rank has: an early and a late piece (even work under the causal "
                 "mask), or one; auto: one where all layers use a2a");
  options
      .integer("expert-model-parallel-size", p.expert_model_parallel_size, kRanks,
               "ep: experts spread over N ranks")
      .also({"ep", "expert-parallel"});
  options
      .integer("expert-tensor-parallel-size", p.expert_tensor_parallel_size, kRanks,
               "each expert cut over N ranks")
      .also({"etp"})
      .otherwise("as --tensor-model-parallel-size");
  options.flag("use-tp-pp-dp-mapping", p.use_tp_pp_dp_mapping,
               "number ranks tp-cp-pp-dp in place of tp-cp-dp-pp");
  options.flag("sequence-parallel", p.sequence_parallel,
               "norms and dropout work on 1/tp of the sequence: less memory, same messages");
  options.flag("use-distributed-optimizer", p.use_distributed_optimizer,
               "optimizer state and master weights cut over the data-parallel ranks (ZeRO-1)");
  options.flag("overlap-grad-reduce", p.overlap_grad_reduce,
               "reduce gradients, bucket by bucket, during backward");
  options.flag("overlap-param-gather", p.overlap_param_gather, "gather parameters during the next forward");
  options.integer("ddp-bucket-size", p.ddp_bucket_size, kSizeOrNone, "elements of a gradient bucket")
      .otherwise("the larger of 40 million and 1 million per data-parallel rank");
  options.choice("pipeline-schedule", p.pipeline_schedule, schedule_choices(),
                 "order of the microbatches of a pipeline");
  options
      .integer("num-virtual-stages-per-pipeline-rank", p.num_virtual_stages_per_pipeline_rank, kRanks,
               "model chunks on each rank of an interleaved pipeline; zb-v: 2")
      .also({"virtual-pipeline-model-parallel-size", "vpp"});
  options
      .integer("num-layers-per-virtual-pipeline-stage", p.num_layers_per_virtual_pipeline_stage, kSize,
               "the same said by the layers of a chunk")
      .otherwise("as many as follow");
  options
      .integer("microbatch-group-size-per-virtual-pipeline-stage",
               p.microbatch_group_size_per_virtual_pipeline_stage, kRanks,
               "interleaved: microbatches that pass a chunk before the next chunk's turn")
      .otherwise("--pipeline-model-parallel-size");
  options
      .integer("decoder-first-pipeline-num-layers", p.decoder_first_pipeline_num_layers, kSize,
               "layers of the first pipeline rank")
      .also({"num-layers-in-first-pipeline-stage"})
      .otherwise("as the other ranks");
  options
      .integer("decoder-last-pipeline-num-layers", p.decoder_last_pipeline_num_layers, kSize,
               "layers of the last pipeline rank")
      .also({"num-layers-in-last-pipeline-stage"})
      .otherwise("as the other ranks");
  options.flag("account-for-embedding-in-pipeline-split", p.account_for_embedding_in_pipeline_split,
               "the embedding counts as a layer of the first stage");
  options.flag("account-for-loss-in-pipeline-split", p.account_for_loss_in_pipeline_split,
               "output layer and loss count as a layer of the last stage");
  options
      .text("pipeline-model-parallel-layout", p.pipeline_model_parallel_layout, "LAYOUT",
            "every stage written out, as 'Et*3|(tt|)*29,L': E embedding, t layer, L loss, | next stage")
      .otherwise("stages alike");
  options.flag("overlap-p2p-communication", p.overlap_p2p_communication,
               "messages between stages travel while ranks compute");
  options.flag("tp-comm-overlap", p.tp_comm_overlap,
               "tensor-parallel messages travel under the matrix products they belong to");
  options
      .choice(
          "cuda-graph-impl", p.cuda_graph_impl,
          {{"local", ParallelConfig::CudaGraphImpl::kLocal}, {"none", ParallelConfig::CudaGraphImpl::kNone}},
          "on GPUs, where no rank talks to another inside a microbatch and nothing is dropped out, local "
          "gives each microbatch to the device as one graph")
      .also({"enable-cuda-graph", "external-cuda-graph"});
  add_recompute_options(options, p);
  options
      .real("distributed-timeout-seconds", p.distributed_timeout_seconds, kTimeouts,
            "a rank that waits longer for others ends the run")
      .also({"distributed-timeout-minutes"});
}

void add_optimizer_options(OptionSet& options, OptimizerConfig& o) {
  options.topic("optimizer");
  options.choice("optimizer", o.optimizer,
                 {{"adam", OptimizerConfig::Kind::kAdam}, {"sgd", OptimizerConfig::Kind::kSgd}},
                 "adam: with decoupled weight decay");
  options.real("lr", o.lr, Reals::non_negative(), "highest learning rate").also({"learning-rate", "max-lr"});
  options.real("min-lr", o.min_lr, Reals::non_negative(), "lowest learning rate of the decay");
  using Style = OptimizerConfig::DecayStyle;
  options
      .choice("lr-decay-style", o.lr_decay_style,
              {{"constant", Style::kConstant},
               {"linear", Style::kLinear},
               {"cosine", Style::kCosine},
               {"inverse-square-root", Style::kInverseSquareRoot},
               {"WSD", Style::kWsd}},
              "after the warm-up")
      .also({"lr-scheduler-type"});
  options.integer("lr-decay-iters", o.lr_decay_iters, kSize, "iterations to decay over, warm-up among them")
      .otherwise("--train-iters");
  options
      .integer("lr-decay-samples", o.lr_decay_samples, {.low = 1, .high = kLargestCount},
               "the same in samples")
      .otherwise("--train-samples");
  options.integer("lr-warmup-iters", o.lr_warmup_iters, kSizeOrNone, "iterations of linear warm-up")
      .also({"warmup-iters", "warmup-steps"});
  options.integer("lr-warmup-samples", o.lr_warmup_samples, kCount, "the same in samples");
  options
      .real("lr-warmup-fraction", o.lr_warmup_fraction, {.low = 0, .high = 1},
            "warm-up as a share of the decay length")
      .also({"warmup-ratio"});
  options.real("lr-warmup-init", o.lr_warmup_init, Reals::non_negative(),
               "learning rate the warm-up starts from");
  using Wsd = OptimizerConfig::WsdStyle;
  options.choice("lr-wsd-decay-style", o.lr_wsd_decay_style,
                 {{"exponential", Wsd::kExponential},
                  {"linear", Wsd::kLinear},
                  {"cosine", Wsd::kCosine},
                  {"minus_sqrt", Wsd::kMinusSqrt}},
                 "last phase of WSD");
  options.integer("lr-wsd-decay-iters", o.lr_wsd_decay_iters, kSize, "its length").otherwise("none");
  options
      .integer("lr-wsd-decay-samples", o.lr_wsd_decay_samples, {.low = 1, .high = kLargestCount},
               "the same in samples")
      .otherwise("none");
  options
      .real("weight-decay", o.weight_decay, Reals::non_negative(), "for matrices; never for biases and norms")
      .also({"wd"});
  options
      .real("start-weight-decay", o.start_weight_decay, Reals::non_negative(), "first value of an increment")
      .otherwise("--weight-decay");
  options.real("end-weight-decay", o.end_weight_decay, Reals::non_negative(), "last value of an increment")
      .otherwise("--weight-decay");
  using Incr = OptimizerConfig::IncrStyle;
  options.choice("weight-decay-incr-style", o.weight_decay_incr_style,
                 {{"constant", Incr::kConstant}, {"linear", Incr::kLinear}, {"cosine", Incr::kCosine}},
                 "from start to end weight decay");
  options.real("adam-beta1", o.adam_beta1, Reals::below_one(), "decay of the mean of gradients")
      .also({"beta1"});
  options.real("adam-beta2", o.adam_beta2, Reals::below_one(), "decay of the mean of their squares")
      .also({"beta2"});
  options.real("adam-eps", o.adam_eps, Reals::non_negative(), "added to the root").also({"adam-epsilon"});
  options.real("sgd-momentum", o.sgd_momentum, Reals::below_one(), "momentum of sgd").also({"momentum"});
  options.real("clip-grad", o.clip_grad, Reals::non_negative(), "largest norm of the whole gradient; 0: any")
      .also({"max-grad-norm", "grad-clip", "gradient-clipping"});
  options.real("loss-scale", o.loss_scale, Reals::non_negative(), "fp16: constant loss scale; 0: dynamic");
  options.real("initial-loss-scale", o.initial_loss_scale, Reals::positive(),
               "fp16: first dynamic loss scale");
  options.real("min-loss-scale", o.min_loss_scale, Reals::positive(), "fp16: lowest dynamic loss scale");
  options.integer("loss-scale-window", o.loss_scale_window, kSize,
                  "fp16: good steps before the scale doubles");
  options.integer("hysteresis", o.hysteresis, kSize, "fp16: overflows before the scale halves");
}

void add_data_options(OptionSet& options, DataConfig& d) {
  options.topic("data");
  options
      .texts("data-path", d.data_path, "PREFIX",
             "tokens in PREFIX.bin and .idx; a blend: weight prefix weight prefix ...")
      .also({"train-data-path", "dataset"});
  options.text("text-file", d.text_file, "FILE", "text, tokenized at start");
  options.text("batches", d.batches, "FILE.safetensors",
               "given batches in order: input_ids and labels [N, B, S]");
  options.text("split", d.split, "A,B,C", "shares of training, validation and test");
  options.text("data-cache-path", d.data_cache_path, "DIR", "where made indices are kept")
      .otherwise("beside the data");
  options.integer("seq-length", d.seq_length, kSize, "tokens of a sample")
      .also({"seq", "sequence-length", "max-seq-length", "context-length"})
      .otherwise("that of --batches");
  options.text("tokenizer-model", d.tokenizer_model, "PATH", "tokenizer.json, or the folder it is in")
      .also({"tokenizer"});
  options.flag("eod-mask-loss", d.eod_mask_loss, "no loss where the input is the end of a document");
  options.flag("reset-position-ids", d.reset_position_ids,
               "positions start anew after the end of a document");
  options.flag("reset-attention-mask", d.reset_attention_mask, "no attention across the end of a document");
}

void add_training_options(OptionSet& options, TrainingConfig& t) {
  options.topic("training");
  options.integer("micro-batch-size", t.micro_batch_size, kSize, "samples of one forward pass of a rank")
      .also({"batch-size", "per-device-train-batch-size"});
  options.integer("global-batch-size", t.global_batch_size, kSize, "samples of a step over all ranks")
      .also({"train-batch-size"})
      .otherwise("micro batch size times data-parallel size");
  options
      .integers("rampup-batch-size", t.rampup_batch_size, kSize,
                "first global batch size, increment, samples until the full one")
      .otherwise("none");
  options.integer("train-iters", t.train_iters, kSize, "steps in all")
      .also({"iterations", "max-steps", "steps", "iters"})
      .otherwise("all of --batches");
  options
      .integer("train-samples", t.train_samples, {.low = 1, .high = kLargestCount},
               "samples in all, in place of steps")
      .otherwise("none");
  options.integer("exit-interval", t.exit_interval, kSizeOrNone,
                  "save and leave at iterations that N divides; 0: never");
  options.integer("eval-interval", t.eval_interval, kSize, "steps between evaluations");
  options.integer("eval-iters", t.eval_iters, kSizeOrNone, "batches of an evaluation; 0: none");
  options.flag("fp32", t.fp32, "compute in single precision: the default on CPUs; on GPUs it is --bf16");
  options.flag("bf16", t.bf16, "compute in bfloat16, update in fp32");
  options.flag("fp16", t.fp16, "compute in half precision with a loss scale, update in fp32");
  options.flag("fp64", t.fp64, "compute and update in double precision, on CPUs: for checks");
  options.flag(
      "deterministic-mode", t.deterministic_mode,
      "the same bits in every run, on GPUs too (slower attention, more memory); CPUs always do that");
  options.integer("seed", t.seed, kCount, "of initial weights, dropout and the order of samples");
  options.flag("calculate-per-token-loss", t.calculate_per_token_loss,
               "mean over the tokens of the global batch; off: mean of the microbatches' means");
  options.choice("on-nonfinite", t.on_nonfinite,
                 {{"stop", TrainingConfig::OnNonfinite::kStop}, {"skip", TrainingConfig::OnNonfinite::kSkip}},
                 "what a loss or gradient that is not finite does to the run, or to the step");
  options.real("label-smoothing", t.label_smoothing, Reals::below_one(),
               "share of the target spread over the vocabulary");
  options.real("z-loss-coeff", t.z_loss_coeff, Reals::non_negative(),
               "weight of the square of log sum exp of the logits");
  options.flag(
      "strict-sequence-length", t.strict_sequence_length,
      "refuse sequences beyond --max-position-embeddings where positions are not learned too, and lengths "
      "that --context-parallel-size would fill up");
  options
      .texts("freeze", t.freeze, "PATTERN",
             "tensors that are not trained, by the names checkpoints use (* any characters, ? one): "
             "'embedding.*' 'decoder.layers.0.*'")
      .also({"frozen", "freeze-layers", "freeze-parameters"})
      .otherwise("none");
  options.integer("cpu-threads", t.cpu_threads, kSizeOrNone, "threads of a rank")
      .also({"threads", "num-threads"})
      .otherwise("cores over ranks");
}

void add_checkpoint_options(OptionSet& options, CheckpointConfig& c) {
  options.topic("checkpoint");
  options.text("save", c.save, "DIR", "where checkpoints go").also({"output-dir", "out"});
  options.text("load", c.load, "DIR", "a checkpoint of any layout, or a Hugging Face folder")
      .also({"resume", "resume-from-checkpoint"});
  options
      .integer("save-interval", c.save_interval, kSizeOrNone, "steps between checkpoints; 0: only at the end")
      .also({"save-steps"});
  options.flag("async-save", c.async_save,
               "write checkpoints while training goes on (not in this build yet)");
  options.integer("keep-last", c.keep_last, kSizeOrNone, "checkpoints to keep; 0: all")
      .also({"save-total-limit"});
  options.flag("finetune", c.finetune, "load weights only: iteration, optimizer and data start anew");
  options.flag("no-load-optim", c.no_load_optim, "leave the optimizer's state in the checkpoint");
  options.flag("no-load-rng", c.no_load_rng, "leave the random state in the checkpoint");
  options.flag("no-save-optim", c.no_save_optim, "do not save the optimizer's state");
  options.flag("override-opt-param-scheduler", c.override_opt_param_scheduler,
               "learning-rate and weight-decay values of this run replace the checkpoint's");
  options.flag("use-checkpoint-opt-param-scheduler", c.use_checkpoint_opt_param_scheduler,
               "the checkpoint's replace those of this run; with neither flag they must agree");
}

void add_log_options(OptionSet& options, LogConfig& l) {
  options.topic("log");
  options.integer("log-interval", l.log_interval, kSize, "steps between progress lines")
      .also({"logging-steps"});
  options.text("metrics", l.metrics, "FILE.jsonl", "one JSON object per step");
  options
      .text("trace", l.trace, "FILE.json",
            "a timeline of some steps, for ui.perfetto.dev or chrome://tracing")
      .also({"use-pytorch-profiler", "timeline"});
  options
      .integer("trace-start-step", l.trace_start_step, {.low = 1, .high = kLargestCount},
               "the first step in it, counted from 1 in this run")
      .also({"profile-step-start"});
  options.integer("trace-steps", l.trace_steps, {.low = 1, .high = kLargestCount}, "how many are in it");
  options.choice("progress", l.progress,
                 {{"auto", LogConfig::Progress::kAuto},
                  {"bar", LogConfig::Progress::kBar},
                  {"lines", LogConfig::Progress::kLines}},
                 "how progress is shown; auto: a bar on terminals");
}

void add_train_options(OptionSet& options, TrainConfig& config) {
  options.allow_files(preset_text, preset_names());
  add_model_options(options, config.model);
  add_moe_options(options, config.model);
  add_data_options(options, config.data);
  add_training_options(options, config.training);
  add_optimizer_options(options, config.optimizer);
  add_parallel_options(options, config.parallel);
  add_checkpoint_options(options, config.checkpoint);
  add_log_options(options, config.log);
}

OptionSet::Request parse_train_options(OptionSet& options, TrainConfig& config, OptionSet::Args args) {
  const auto request = options.parse(args, [&] {
    const Launch launch(config.parallel);  // how many ranks there are is not always an option
    std::vector<std::string> problems = problems_of(config);
    if (options.given("group-query-attention") && !options.given("num-query-groups")) {
      problems.emplace_back("--group-query-attention needs --num-query-groups N");
    }
    std::vector<std::string> later = unsupported_yet(config);
    std::move(later.begin(), later.end(), std::back_inserter(problems));
    return problems;
  });
  if (request != OptionSet::Request::kHelp) config = resolved(config);
  return request;
}

}  // namespace weft
