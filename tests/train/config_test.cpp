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

}  // namespace
}  // namespace weft
