#include "train/config.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "train/options.hpp"

namespace weft {
namespace {

using Schedule = ParallelConfig::Schedule;

TrainConfig base() {
  TrainConfig c;
  c.model.num_layers = 2;
  c.model.hidden_size = 32;
  c.model.num_attention_heads = 4;
  c.model.vocab_size = 64;
  c.data.data_path = {"d"};
  c.data.seq_length = 16;
  c.training.train_iters = 10;
  c.optimizer.lr = 0.5;
  return c;
}

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& line : list) text += line + "\n";
  return text;
}

TEST(Config, BaseIsFine) {
  EXPECT_EQ(joined(problems_of(base())), "");
  EXPECT_EQ(joined(problems_of(resolved(base()))), "");
  EXPECT_EQ(joined(notes_of(base())), "");
  EXPECT_EQ(joined(unsupported_yet(base())), "");
  EXPECT_EQ(resolved(resolved(base())), resolved(base()));
}

TEST(Config, EachContradictionNamesItsOptionsAndNumbers) {
  const struct {
    std::function<void(TrainConfig&)> change;
    std::vector<const char*> parts;
  } cases[] = {
      {[](auto& c) { c.model.hidden_size = 30; }, {"--hidden-size 30", "--num-attention-heads 4"}},
      {[](auto& c) { c.training.fp16 = c.training.bf16 = true; }, {"--bf16", "--fp16"}},
      {[](auto& c) { c.log.trace = c.log.metrics = "run.json"; }, {"--metrics run.json", "--trace run.json"}},
      {[](auto& c) {
         c.log.metrics = "none/../run.json";
         c.log.trace = "./run.json";
       },
       {"--metrics none/../run.json", "--trace ./run.json"}},
      {[](auto& c) {
         c.data.seq_length = 32;
         c.model.max_position_embeddings = 16;
       },
       {"--seq-length 32", "--max-position-embeddings 16"}},
      {[](auto& c) { c.parallel.expert_model_parallel_size = 2; },
       {"--expert-model-parallel-size 2", "experts"}},
      {[](auto& c) { c.parallel.num_virtual_stages_per_pipeline_rank = 2; },
       {"--num-virtual-stages-per-pipeline-rank 2", "--pipeline-model-parallel-size", "1"}},
      {[](auto& c) { c.parallel.pipeline_schedule = Schedule::kInterleaved; },
       {"interleaved", "--pipeline-model-parallel-size"}},
      {[](auto& c) { c.model.num_query_groups = 3; }, {"--num-query-groups 3", "--num-attention-heads 4"}},
      {[](auto& c) { c.optimizer.lr_warmup_iters = 11; }, {"--lr-warmup-iters 11", "--train-iters 10"}},
      {[](auto& c) {
         c.optimizer.lr_decay_iters = 5;
         c.optimizer.lr_warmup_iters = 6;
       },
       {"--lr-warmup-iters 6", "--lr-decay-iters 5"}},
      {[](auto& c) { c.optimizer.min_lr = 0.75; }, {"--min-lr 0.75", "--lr 0.5"}},
      {[](auto& c) { c.optimizer.lr = -1; }, {"--lr must be given"}},
      {[](auto& c) { c.parallel.ranks = 3, c.parallel.tensor_model_parallel_size = 2; },
       {"--ranks 3", "--tensor-model-parallel-size 2"}},
      {[](auto& c) { c.parallel.tensor_model_parallel_size = 8; },
       {"--num-attention-heads 4", "--tensor-model-parallel-size 8"}},
      {[](auto& c) { c.parallel.pipeline_model_parallel_size = 4; }, {"--num-layers 2", "4"}},
      {[](auto& c) { c.parallel.tensor_model_parallel_size = 2, c.parallel.tp_comm_overlap = true; },
       {"--tp-comm-overlap", "--tensor-model-parallel-size 2", "--sequence-parallel"}},
      {[](auto& c) { c.data.batches = "b", c.data.text_file = "t", c.data.tokenizer_model = "k"; },
       {"--data-path d", "--text-file t", "--batches b"}},
      {[](auto& c) { c.data.data_path.clear(); }, {"--data-path", "--text-file", "--batches"}},
      {[](auto& c) { c.data.data_path.clear(), c.data.text_file = "t"; },
       {"--text-file t", "--tokenizer-model"}},
      {[](auto& c) { c.data.seq_length = 0; }, {"--seq-length must be given"}},
      {[](auto& c) {
         c.data.data_path = {"1", "a", "2"};
       },
       {"--data-path with 3"}},
      {[](auto& c) { c.model.vocab_size = 0; }, {"--vocab-size"}},
      {[](auto& c) { c.model.num_layers = 0; }, {"--num-layers must be given"}},
      {[](auto& c) { c.training.train_iters = 0; }, {"--train-iters", "--train-samples"}},
      {[](auto& c) { c.training.train_samples = 5; }, {"--train-iters 10", "--train-samples 5"}},
      {[](auto& c) { c.checkpoint.save_interval = 5; }, {"--save-interval 5", "--save"}},
      {[](auto& c) {
         c.checkpoint.override_opt_param_scheduler = c.checkpoint.use_checkpoint_opt_param_scheduler = true;
       },
       {"--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler"}},
      {[](auto& c) { c.optimizer.lr_decay_style = OptimizerConfig::DecayStyle::kWsd; },
       {"WSD", "--lr-wsd-decay-iters"}},
      {[](auto& c) { c.optimizer.end_weight_decay = 0.5; }, {"0.5", "0.01", "--weight-decay-incr-style"}},
      {[](auto& c) { c.training.fp64 = true, c.parallel.device = ParallelConfig::Device::kCuda; },
       {"--fp64", "cuda"}},
  };
  for (const auto& bad : cases) {
    TrainConfig config = base();
    bad.change(config);
    const std::vector<std::string> problems = problems_of(config);
    EXPECT_EQ(problems.size(), 1u) << joined(problems) << "for " << bad.parts.front();
    for (const char* part : bad.parts) {
      EXPECT_NE(joined(problems).find(part), std::string::npos) << part << "\nin " << joined(problems);
    }
  }
}

// A pipeline of this many ranks with this many layers, and what is changed of it.
TrainConfig piped(std::int64_t layers, std::int64_t ranks, Schedule schedule = Schedule::k1F1B,
                  std::int64_t batch = 0) {
  TrainConfig c = base();
  c.model.num_layers = layers;
  c.parallel.pipeline_model_parallel_size = ranks;
  c.parallel.pipeline_schedule = schedule;
  c.training.global_batch_size = batch;
  return c;
}

TEST(Config, EachContradictionOfAPipelineNamesItsOptionsAndNumbers) {
  const auto changed = [](TrainConfig c, const std::function<void(ParallelConfig&)>& change) {
    change(c.parallel);
    return c;
  };
  TrainConfig micro = piped(4, 2, Schedule::kInterleaved, 6);
  micro.parallel.num_virtual_stages_per_pipeline_rank = 2;
  micro.training.micro_batch_size = 2;
  TrainConfig rampup = piped(4, 2, Schedule::kInterleaved, 8);
  rampup.parallel.num_virtual_stages_per_pipeline_rank = 2;
  rampup.training.train_iters = 0, rampup.training.train_samples = 100;
  rampup.training.rampup_batch_size = {2, 1, 20};
  const struct {
    TrainConfig config;
    std::vector<const char*> parts;
  } cases[] = {
      {piped(3, 2),
       {"--num-layers 3", "--pipeline-model-parallel-size 2", "--decoder-first-pipeline-num-layers",
        "--pipeline-model-parallel-layout"}},
      {changed(piped(4, 2, Schedule::kInterleaved, 4),
               [](auto& p) { p.num_layers_per_virtual_pipeline_stage = 3; }),
       {"--num-layers 4",
        "6 = --pipeline-model-parallel-size 2 x --num-layers-per-virtual-pipeline-stage 3"}},
      {changed(piped(4, 4, Schedule::kInterleaved, 4),
               [](auto& p) { p.num_virtual_stages_per_pipeline_rank = 2; }),
       {"--num-layers 4", "--pipeline-model-parallel-size 4", "--num-virtual-stages-per-pipeline-rank 2"}},
      {changed(piped(4, 2, Schedule::kInterleaved, 4),
               [](auto& p) {
                 p.num_layers_per_virtual_pipeline_stage = 1;
                 p.num_virtual_stages_per_pipeline_rank = 2;
               }),
       {"--num-layers-per-virtual-pipeline-stage 1", "--num-virtual-stages-per-pipeline-rank 2"}},
      {changed(piped(4, 2, Schedule::kInterleaved, 4),
               [](auto& p) {
                 p.num_layers_per_virtual_pipeline_stage = 1;
                 p.decoder_first_pipeline_num_layers = 2;
               }),
       {"--num-layers-per-virtual-pipeline-stage 1", "--decoder-first-pipeline-num-layers"}},
      {changed(piped(4, 2), [](auto& p) { p.num_layers_per_virtual_pipeline_stage = 1; }),
       {"--num-layers-per-virtual-pipeline-stage 1", "--pipeline-schedule 1f1b"}},
      {changed(piped(4, 2), [](auto& p) { p.num_virtual_stages_per_pipeline_rank = 2; }),
       {"--num-virtual-stages-per-pipeline-rank 2", "--pipeline-schedule 1f1b", "interleaved"}},
      {piped(4, 2, Schedule::kInterleaved, 2),
       {"--pipeline-schedule interleaved", "--num-virtual-stages-per-pipeline-rank", "1"}},
      {changed(piped(12, 2, Schedule::kZbV), [](auto& p) { p.num_virtual_stages_per_pipeline_rank = 3; }),
       {"--num-virtual-stages-per-pipeline-rank 3", "zb-v", "two chunks"}},
      {piped(2, 2, Schedule::kZbV),
       {"--num-layers 2", "--pipeline-model-parallel-size 2 x --num-virtual-stages-per-pipeline-rank 2"}},
      {changed(piped(4, 2, Schedule::kInterleaved, 3),
               [](auto& p) { p.num_virtual_stages_per_pipeline_rank = 2; }),
       {"number of microbatches 3", "--global-batch-size 3", "--pipeline-model-parallel-size 2"}},
      {micro, {"number of microbatches 3", "--global-batch-size 6", "--micro-batch-size 2"}},
      {rampup, {"number of microbatches 3", "--rampup-batch-size, which passes 3"}},
      {changed(piped(4, 2, Schedule::kInterleaved, 4),
               [](auto& p) {
                 p.num_virtual_stages_per_pipeline_rank = 2;
                 p.microbatch_group_size_per_virtual_pipeline_stage = 1;
               }),
       {"--microbatch-group-size-per-virtual-pipeline-stage 1", "--pipeline-model-parallel-size 2"}},
      {changed(piped(4, 2), [](auto& p) { p.microbatch_group_size_per_virtual_pipeline_stage = 4; }),
       {"--microbatch-group-size-per-virtual-pipeline-stage 4", "interleaved", "1f1b"}},
      {changed(piped(4, 2), [](auto& p) { p.pipeline_model_parallel_layout = "Et|tL"; }),
       {"--pipeline-model-parallel-layout Et|tL", "2 layers", "--num-layers is 4"}},
      {changed(piped(4, 2), [](auto& p) { p.pipeline_model_parallel_layout = "Et|t|t|tL"; }),
       {"--pipeline-model-parallel-layout Et|t|t|tL", "4 stages", "2 = --pipeline-model-parallel-size 2"}},
      {changed(piped(4, 1), [](auto& p) { p.decoder_last_pipeline_num_layers = 2; }),
       {"--decoder-last-pipeline-num-layers 2", "--pipeline-model-parallel-size"}},
  };
  for (const auto& bad : cases) {
    const std::vector<std::string> problems = problems_of(bad.config);
    EXPECT_EQ(problems.size(), 1u) << joined(problems) << "for " << bad.parts.back();
    for (const char* part : bad.parts) {
      EXPECT_NE(joined(problems).find(part), std::string::npos) << part << "\nin " << joined(problems);
    }
    // Resolving hides no contradiction.
    EXPECT_EQ(problems_of(resolved(bad.config)).size(), 1u) << joined(problems);
  }
}

TEST(Config, UnevenPipelinesAndTheirNumberOfStages) {
  const auto stages = [](const TrainConfig& c) {
    EXPECT_EQ(joined(problems_of(c)), "");
    const TrainConfig r = resolved(c);
    EXPECT_EQ(joined(problems_of(r)), "");
    EXPECT_EQ(resolved(r), r);
    EXPECT_EQ(r.parallel.num_virtual_stages_per_pipeline_rank, virtual_stages(c));
    EXPECT_EQ(split_stages(stage_split(c)), split_stages(stage_split(r)));
    return to_string(split_stages(stage_split(r)));
  };
  TrainConfig c = piped(3, 2);
  c.parallel.decoder_first_pipeline_num_layers = 1;
  c.parallel.decoder_last_pipeline_num_layers = 2;
  EXPECT_EQ(stages(c), "stages: 0 [embedding, layer 0], 1 [layers 1-2, loss]; 3 layers");
  c = piped(3, 2);
  c.parallel.account_for_loss_in_pipeline_split = true;
  EXPECT_EQ(stages(c), "stages: 0 [embedding, layers 0-1], 1 [layer 2, loss]; 3 layers");
  const std::string four =
      "stages: 0 [embedding, layer 0], 1 [layer 1], 2 [layer 2], 3 [layer 3, loss]; 4 layers";
  EXPECT_EQ(stages(piped(4, 2, Schedule::kZbV)), four);
  c = piped(4, 2, Schedule::kInterleaved, 4);
  c.parallel.num_layers_per_virtual_pipeline_stage = 1;
  EXPECT_EQ(stages(c), four);
  EXPECT_EQ(resolved(c).parallel.num_layers_per_virtual_pipeline_stage, 0);
  c = piped(4, 2, Schedule::kInterleaved, 4);
  c.parallel.pipeline_model_parallel_layout = "Et|(t|)*2tL";
  EXPECT_EQ(stages(c), four);
  c = piped(7, 2, Schedule::kZbV);
  c.parallel.decoder_first_pipeline_num_layers = 4;
  EXPECT_EQ(problems_of(c).size(), 1u);  // three layers over two chunks
  c.model.num_layers = 6;
  EXPECT_EQ(stages(c),
            "stages: 0 [embedding, layers 0-1], 1 [layer 2], 2 [layer 3], 3 [layers 4-5, loss]; 6 layers");
}

TEST(Config, MicrobatchesOfAStep) {
  TrainConfig c = piped(4, 2, Schedule::kZbH1, 7);
  c.training.micro_batch_size = 2;
  EXPECT_EQ(pipeline_shape(c).microbatches, 4);
  EXPECT_FALSE(pipeline_shape(c).forward_only);
  c.parallel.ranks = 4;
  EXPECT_EQ(pipeline_shape(c).microbatches, 2);
  c.training.global_batch_size = 0;
  EXPECT_EQ(pipeline_shape(c).microbatches, 1);
  // Given batches say it later: nothing is judged before.
  c = piped(4, 2, Schedule::kInterleaved);
  c.parallel.num_virtual_stages_per_pipeline_rank = 2;
  EXPECT_EQ(problems_of(c).size(), 1u);
  c.data.data_path.clear(), c.data.batches = "b.safetensors";
  EXPECT_EQ(joined(problems_of(c)), "");
  c.training.global_batch_size = 3;
  EXPECT_EQ(problems_of(c).size(), 1u);
  for (const std::int64_t batch : {2, 4}) {
    c.training.global_batch_size = batch;
    EXPECT_EQ(joined(problems_of(c)), "");
  }
  for (const std::int64_t batch : {1, 2, 3, 5})
    EXPECT_EQ(joined(problems_of(piped(4, 4, Schedule::k1F1B, batch))), "");
}

TEST(Config, EachContradictionOfRecomputationIsNamed) {
  using Granularity = ParallelConfig::RecomputeGranularity;
  using Method = ParallelConfig::RecomputeMethod;
  const struct {
    Granularity granularity;
    Method method;
    std::int64_t layers;
    std::vector<std::string> modules;
    std::vector<const char*> parts;  // none: fine
  } cases[] = {
      {Granularity::kNone, Method::kNotGiven, 0, {"core_attn"}, {}},
      {Granularity::kFull, Method::kUniform, 1, {"core_attn"}, {}},
      {Granularity::kFull, Method::kBlock, 2, {"core_attn"}, {}},
      {Granularity::kSelective, Method::kNotGiven, 0, {"core_attn"}, {}},
      {Granularity::kSelective, Method::kNotGiven, 0, {"mlp", "core_attn"}, {}},
      {Granularity::kFull, Method::kNotGiven, 1, {"core_attn"}, {"full needs --recompute-method"}},
      {Granularity::kFull, Method::kUniform, 0, {"core_attn"}, {"full needs --recompute-num-layers"}},
      {Granularity::kFull,
       Method::kUniform,
       1,
       {"mlp"},
       {"--recompute-modules mlp", "selective (it is full)"}},
      {Granularity::kNone,
       Method::kBlock,
       0,
       {"core_attn"},
       {"--recompute-method block", "full (it is none)"}},
      {Granularity::kNone,
       Method::kNotGiven,
       3,
       {"core_attn"},
       {"--recompute-num-layers 3", "full (it is none)"}},
      {Granularity::kNone,
       Method::kNotGiven,
       0,
       {"mlp"},
       {"--recompute-modules mlp", "selective (it is none)"}},
      {Granularity::kSelective,
       Method::kUniform,
       0,
       {"mlp"},
       {"--recompute-method uniform", "(it is selective)"}},
      {Granularity::kSelective,
       Method::kNotGiven,
       1,
       {"mlp"},
       {"--recompute-num-layers 1", "(it is selective)"}},
      {Granularity::kSelective,
       Method::kNotGiven,
       0,
       {"moe_act", "mlp"},
       {"--recompute-modules moe_act", "core_attn, mlp"}},
  };
  for (const auto& one : cases) {
    TrainConfig c = base();
    c.parallel.recompute_granularity = one.granularity;
    c.parallel.recompute_method = one.method;
    c.parallel.recompute_num_layers = one.layers;
    c.parallel.recompute_modules = one.modules;
    const std::vector<std::string> problems = problems_of(c);
    EXPECT_EQ(problems.size(), one.parts.empty() ? 0u : 1u) << joined(problems);
    for (const char* part : one.parts) {
      EXPECT_NE(joined(problems).find(part), std::string::npos) << part << "\nin " << joined(problems);
    }
  }
}

TEST(Config, PatternsOfFrozenTensorsAreHeldAgainstTheModel) {
  const auto problems = [](std::vector<std::string> freeze, bool tied = true) {
    TrainConfig c = base();
    c.model.tied = tied;
    c.training.freeze = std::move(freeze);
    return joined(problems_of(c));
  };
  const struct {
    std::vector<std::string> freeze;
    std::vector<const char*> parts;
  } cases[] = {
      {{"embedding.*"}, {}},
      {{"decoder.layers.?.mlp.*", "*layernorm*"}, {}},
      {{"*.linear_q.weight", "*.linear_k.weight", "*.linear_v.weight"}, {}},
      {{"decoder.layer.0.*"}, {"--freeze decoder.layer.0.* matches no tensor", "decoder.layers.0.*"}},
      {{"decoder.layers.2.*"}, {"--freeze decoder.layers.2.* matches no tensor", "decoder.layers.1.*"}},
      {{"embeding.*", "*.mlp.*"}, {"--freeze embeding.* matches no tensor", "nearest are embedding.*"}},
      {{"*.mpl.*"}, {"--freeze *.mpl.* matches no tensor", "*.mlp.*"}},
      {{"embedding.word_embeddings.wieght"}, {"nearest are embedding.word_embeddings.weight"}},
      {{"output_layer.weight"}, {"--freeze output_layer.weight matches no tensor"}},  // it is the embedding
      {{"*"}, {"--freeze * freezes all", "nothing is left to train"}},
      {{"decoder.*", "embedding.*"}, {"--freeze decoder.* embedding.* freezes all"}},
      {{"decoder.layers.1.self_attention.linear_q.weight"},
       {"decoder.layers.1.self_attention.linear_q.weight and "
        "decoder.layers.1.self_attention.linear_k.weight, decoder.layers.1.self_attention.linear_v.weight "
        "lie "
        "in one parameter"}},
      {{"*.linear_v.*"}, {"linear_v.weight and", "linear_q.weight", "and so in 3 more parameters"}},
  };
  for (const auto& [freeze, parts] : cases) {
    const std::string text = problems(freeze);
    EXPECT_EQ(text.empty(), parts.empty()) << freeze.front() << ": " << text;
    for (const char* part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << " not in: " << text;
  }
  EXPECT_EQ(problems({"output_layer.weight"}, false), "");
  // Other problems of the run are told with it; a model that is no model is told alone.
  TrainConfig c = base();
  c.training.freeze = {"nothing"};
  c.optimizer.lr = -1;
  EXPECT_NE(joined(problems_of(c)).find("--lr must be given"), std::string::npos);
  EXPECT_NE(joined(problems_of(c)).find("--freeze nothing"), std::string::npos);
  c.model.hidden_size = 30;
  EXPECT_EQ(joined(problems_of(c)).find("--freeze nothing"), std::string::npos);
  // What --load brings is judged when it is known.
  c = base();
  c.model = {};
  c.checkpoint.load = "folder";
  c.training.freeze = {"nothing"};
  EXPECT_EQ(joined(problems_of(c)), "");
}

TEST(Config, AllContradictionsAtOnce) {
  TrainConfig config = base();
  config.model.hidden_size = 30;
  config.optimizer.min_lr = 2;
  config.training.fp16 = config.training.bf16 = true;
  EXPECT_EQ(problems_of(config).size(), 3u);
}

TEST(Config, WhatHasNoEffectIsSaidOnce) {
  TrainConfig config = base();
  config.parallel.sequence_parallel = true;
  config.parallel.use_distributed_optimizer = true;
  EXPECT_EQ(joined(problems_of(config)), "");
  EXPECT_EQ(joined(unsupported_yet(config)), "");
  ASSERT_EQ(notes_of(config).size(), 2u);
  EXPECT_NE(notes_of(config)[0].find("--sequence-parallel"), std::string::npos);
  EXPECT_NE(notes_of(config)[1].find("--use-distributed-optimizer"), std::string::npos);
}

TEST(Config, ABatchThatDoesNotDivideIsFilled) {
  TrainConfig config = base();
  config.parallel.ranks = 2;
  config.training.micro_batch_size = 3;
  config.training.global_batch_size = 7;
  EXPECT_EQ(joined(problems_of(config)), "");
  ASSERT_EQ(notes_of(config).size(), 1u);
  EXPECT_NE(notes_of(config)[0].find("--global-batch-size 7 is filled up to 12"), std::string::npos)
      << notes_of(config)[0];
}

TEST(Config, SizesFollowFromTheLayout) {
  TrainConfig config = base();
  config.parallel.ranks = 12;
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.context_parallel_size = 2;
  EXPECT_EQ(model_parallel_size(config.parallel), 4);
  EXPECT_EQ(data_parallel_size(config.parallel), 3);
  config.parallel.ranks = 0;
  EXPECT_EQ(world_size(config.parallel), 4);
  EXPECT_EQ(data_parallel_size(config.parallel), 1);
}

// Given batches bring their own sizes; a loaded model brings itself.
TEST(Config, WhatOthersBringNeedNotBeGiven) {
  TrainConfig config = base();
  config.data.data_path.clear();
  config.data.batches = "b.safetensors";
  config.data.seq_length = 0;
  config.training.train_iters = 0;
  EXPECT_EQ(joined(problems_of(config)), "");
  EXPECT_EQ(resolved(config).training.global_batch_size, 0);
  config.model = ModelConfig{};
  config.checkpoint.load = "dir";
  EXPECT_EQ(joined(problems_of(config)), "");
}

TEST(Config, WhatThisBuildCannotRunIsNamed) {
  TrainConfig config = base();
  config.parallel.launcher = ParallelConfig::Launcher::kMpi;
  config.parallel.device = ParallelConfig::Device::kCuda;
  EXPECT_EQ(problems_of(config).size(), 0u);
  for (const std::string& line : unsupported_yet(config)) {
    EXPECT_NE(line.find("--"), std::string::npos);
    EXPECT_NE(line.find("this build cannot"), std::string::npos);
  }
}

// Every text of train/context_parallel.cpp.
TEST(Config, ContextParallelNamesItsOptionsAndNumbers) {
  const auto base_cp = [](std::int64_t cp, std::int64_t tp = 1) {
    TrainConfig c = base();
    c.parallel.context_parallel_size = cp;
    c.parallel.tensor_model_parallel_size = tp;
    c.parallel.ranks = cp * tp;
    return c;
  };
  const struct {
    std::function<TrainConfig()> make;
    std::vector<const char*> parts;  // of one problem; empty: none
  } cases[] = {
      {[&] { return base_cp(2); }, {}},
      {[&] { return base_cp(3); }, {}},
      {[&] {
         TrainConfig c = base_cp(1);
         c.parallel.cp_comm_type = {"ring"};
         return c;
       },
       {"--cp-comm-type ring", "p2p, all_gather, a2a or a2a+p2p"}},
      {[&] {
         TrainConfig c = base_cp(2);
         c.parallel.cp_comm_type = {"p2p", "a2a", "p2p"};
         return c;
       },
       {"--cp-comm-type names 3 methods", "2 layers"}},
      {[&] {
         TrainConfig c = base_cp(3);
         c.parallel.cp_comm_type = {"a2a"};
         return c;
       },
       {"--cp-comm-type a2a", "4 heads", "--num-attention-heads 4", "tensor parallel 1",
        "--context-parallel-size 3", "p2p and all_gather"}},
      {[&] {
         TrainConfig c = base_cp(4, 2);
         c.parallel.cp_comm_type = {"p2p", "a2a"};
         return c;
       },
       {"--cp-comm-type a2a", "2 heads", "--num-attention-heads 4", "tensor parallel 2",
        "--context-parallel-size 4"}},
      {[&] {
         TrainConfig c = base_cp(2);
         c.model.hidden_size = 48;
         c.model.num_attention_heads = 6;
         c.model.num_query_groups = 3;
         c.parallel.cp_comm_type = {"a2a"};
         return c;
       },
       {"--cp-comm-type a2a", "3 key/value heads", "--num-query-groups 3", "tensor parallel 1",
        "--context-parallel-size 2", "neither divides"}},
      {[&] {
         TrainConfig c = base_cp(4);
         c.parallel.cp_comm_type = {"a2a+p2p"};
         return c;
       },
       {"a2a+p2p needs --hierarchical-context-parallel-sizes", "--context-parallel-size 4", "given: none"}},
      {[&] {
         TrainConfig c = base_cp(4);
         c.parallel.cp_comm_type = {"a2a+p2p"};
         c.parallel.hierarchical_context_parallel_sizes = {"2", "3"};
         return c;
       },
       {"--hierarchical-context-parallel-sizes", "--context-parallel-size 4", "given: 2 3"}},
      {[&] {
         TrainConfig c = base_cp(4);
         c.parallel.cp_comm_type = {"a2a+p2p"};
         c.parallel.hierarchical_context_parallel_sizes = {"2", "two"};
         return c;
       },
       {"--hierarchical-context-parallel-sizes", "given: 2 two"}},
      {[&] {
         TrainConfig c = base_cp(6);
         c.parallel.cp_comm_type = {"a2a+p2p"};
         c.parallel.hierarchical_context_parallel_sizes = {"3", "2"};
         return c;
       },
       {"--cp-comm-type a2a+p2p", "4 heads", "--hierarchical-context-parallel-sizes 3"}},
      {[&] {
         TrainConfig c = base_cp(6);
         c.parallel.cp_comm_type = {"a2a+p2p"};
         c.parallel.hierarchical_context_parallel_sizes = {"2", "3"};
         return c;
       },
       {}},
  };
  for (const auto& test : cases) {
    const TrainConfig c = test.make();
    const std::vector<std::string> problems = problems_of(c);
    EXPECT_EQ(problems.size(), test.parts.empty() ? 0 : 1) << joined(problems);
    for (const char* part : test.parts) {
      EXPECT_NE(joined(problems).find(part), std::string::npos) << part << " is not in:\n"
                                                                << joined(problems);
    }
  }
}

// A length that is not cut evenly is filled up and said so, or refused where the user wants it refused.
TEST(Config, LengthsUnderContextParallel) {
  const struct {
    std::int64_t length, cp, tp;
    const char* multiple;  // that the length is not one of; null: it is
  } cases[] = {{12, 2, 4, "8"}, {16, 2, 4, nullptr}, {30, 4, 1, "8"}, {8, 8, 1, "16"}, {18, 3, 1, nullptr}};
  for (const auto& [length, cp, tp, multiple] : cases) {
    TrainConfig c = base();
    c.data.seq_length = length;
    c.parallel.context_parallel_size = cp;
    c.parallel.tensor_model_parallel_size = tp;
    c.parallel.sequence_parallel = tp > 1;
    c.parallel.ranks = cp * tp;
    EXPECT_EQ(joined(problems_of(c)), "") << length << " " << cp;
    EXPECT_EQ(joined(notes_of(c)).find("filled up") != std::string::npos, multiple != nullptr)
        << joined(notes_of(c));
    c.training.strict_sequence_length = true;
    const std::string problems = joined(problems_of(c));
    if (multiple == nullptr) {
      EXPECT_EQ(problems, "");
      continue;
    }
    for (const std::string& part : {"--strict-sequence-length: --seq-length " + std::to_string(length) +
                                        " is not divisible by " + multiple + ",",
                                    "--context-parallel-size " + std::to_string(cp),
                                    "--tensor-model-parallel-size " + std::to_string(tp) +
                                        (tp > 1 ? " and --sequence-parallel needs" : " needs")}) {
      EXPECT_NE(problems.find(part), std::string::npos) << part << " is not in:\n" << problems;
    }
  }
  // Where every layer exchanges heads a rank has one piece: any multiple of cp will do.
  TrainConfig c = base();
  c.data.seq_length = 6;
  c.parallel.context_parallel_size = c.parallel.ranks = 2;
  c.training.strict_sequence_length = true;
  EXPECT_NE(joined(problems_of(c)), "");
  c.parallel.cp_comm_type = {"a2a"};
  EXPECT_EQ(joined(problems_of(c)), "");
}

}  // namespace
}  // namespace weft
