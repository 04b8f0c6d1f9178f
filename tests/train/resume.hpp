// A small training run in a folder of its own, and its cuts into ranks: what the tests of stopping and going
// on share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <map>
#include <thread>

#include "checkpoint/checkpoint.hpp"
#include "comm/local/launcher.hpp"
#include "interop/huggingface_weights.hpp"
#include "support/golden.hpp"
#include "support/rank.hpp"
#include "train/engine.hpp"
#include "train/metrics.hpp"
#include "train/run_checkpoint.hpp"
#include "train/schedule.hpp"
#include "train/trainer.hpp"

namespace weft::resume {

using testing::TemporaryFolder;

inline constexpr std::int64_t kSteps = 6, kRows = 8, kSequence = 12, kVocabulary = 31;

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::int32_t> ids;
    for (const double v : testing::random_values(3, 2 * kSteps * kRows * kSequence)) {
      ids.push_back(static_cast<std::int32_t>((v + 1) / 2 * (kVocabulary - 1)));
    }
    const Shape shape{kSteps, kRows, kSequence};
    write_safetensors(folder_ / "batches.safetensors",
                      {{"input_ids", Tensor::borrow(ids.data(), DType::kI32, shape)},
                       {"labels", Tensor::borrow(ids.data() + shape.elems(), DType::kI32, shape)}});
  }

  TrainConfig config(int ranks, const std::string& save) const {
    TrainConfig c;
    c.model.num_layers = 2;
    c.model.hidden_size = 16;
    c.model.num_attention_heads = 4;
    c.model.vocab_size = kVocabulary;
    c.model.max_position_embeddings = kSequence;
    c.model.hidden_dropout = 0.2;
    c.model.attention_dropout = 0.1;
    c.data.batches = folder_ / "batches.safetensors";
    c.parallel.ranks = ranks;
    c.training.micro_batch_size = 1;  // accumulates: 8 rows over 1 or 4 ranks
    c.optimizer.lr = 1e-2;
    c.optimizer.lr_warmup_iters = 2;
    c.checkpoint.save = folder_ / save;
    c.log.metrics = folder_ / (save + ".jsonl");
    return c;
  }

  std::vector<std::byte> bytes_of(const std::string& save, const std::string& kind) const {
    const CheckpointReader reader(folder_ / save);
    std::vector<std::byte> all;
    testing::TestRank rank;
    for (const CheckpointTensor& tensor : reader.info().tensors) {
      if (tensor.kind != kind) continue;
      const Tensor out = rank.lane().alloc(tensor.dtype, tensor.shape, "test");
      reader.read_kind(rank.lane(), kind, tensor.name, -1, 0, 0, out);
      all.insert(all.end(), out.raw(), out.raw() + out.bytes());
    }
    return all;
  }

  // Each tensor of a kind, by name.
  std::map<std::string, std::vector<double>> tensors_of(const std::string& save, const char* kind) const {
    const CheckpointReader reader(folder_ / save);
    std::map<std::string, std::vector<double>> all;
    testing::TestRank rank;
    for (const CheckpointTensor& tensor : reader.info().tensors) {
      if (tensor.kind != kind) continue;
      const Tensor out = rank.lane().alloc(tensor.dtype, tensor.shape, "test");
      reader.read_kind(rank.lane(), kind, tensor.name, -1, 0, 0, out);
      all[tensor.name] = testing::to_doubles(out);
    }
    return all;
  }

  std::vector<StepMetrics> steps(const std::string& save) const {
    return read_metrics(folder_ / (save + ".jsonl"));
  }

  // Reads the checkpoint of c on c's layout and writes it to another folder, without a step between.
  static void load_and_save(const TrainConfig& given, const std::filesystem::path& to) {
    TrainConfig c = resolved(given);
    c.data.seq_length = kSequence;
    EngineOptions options = EngineOptions::from(c);
    run_local_ranks({.ranks = options.layout.world()}, [&](Communicator& world) {
      testing::TestRank rank;
      const Groups groups(world, options.layout);
      Engine engine(rank.lane(), groups, options);
      const CheckpointReader reader(c.checkpoint.load);
      load_checkpoint(rank.lane(), reader, engine.checkpoint_parts(),
                      {.part_of_model = engine.part_of_model()});
      engine.publish();
      save_checkpoint(rank.lane(), {groups.world(), groups.tp(), groups.pp()}, engine.checkpoint_parts(),
                      {.iteration = reader.info().iteration, .model = reader.info().model}, to);
    });
  }

  TemporaryFolder folder_;
};

using Schedule = ParallelConfig::Schedule;

struct Cut {
  int tp = 1, pp = 1, dp = 1, cp = 1;
  Schedule schedule = Schedule::k1F1B;
  int chunks = 1;
  bool distributed = false;
  std::int64_t bucket = 0;
  std::string cp_method = "p2p";

  void apply(TrainConfig& c) const {
    c.model.num_layers = 4;
    c.model.num_query_groups = 2;
    c.parallel.tensor_model_parallel_size = tp;
    c.parallel.pipeline_model_parallel_size = pp;
    c.parallel.context_parallel_size = cp;
    c.parallel.cp_comm_type = {cp_method};
    c.parallel.ranks = tp * pp * dp * cp;
    c.parallel.pipeline_schedule = schedule;
    c.parallel.num_virtual_stages_per_pipeline_rank = chunks;
    c.parallel.use_distributed_optimizer = distributed;
    c.parallel.overlap_grad_reduce = c.parallel.overlap_param_gather = distributed;
    c.parallel.sequence_parallel = tp > 1;
    c.parallel.ddp_bucket_size = bucket;
  }
};

}  // namespace weft::resume
