// Tensors that --freeze keeps as they are: through stops, and when they begin to train again.
#include "resume.hpp"

namespace weft {
namespace {

using namespace resume;

// The cuts that frozen tensors are tried on: buckets smaller than a parameter, slices, stages.
const std::vector<Cut> kFrozenCuts = {
    {},
    {.dp = 2, .bucket = 200},
    {.tp = 2, .pp = 2, .dp = 2, .distributed = true, .bucket = 200},
    {.pp = 2, .dp = 2, .schedule = Schedule::kZbV, .chunks = 2, .distributed = true, .bucket = 200}};

double rounded(double value) {
  return static_cast<double>(static_cast<float>(bf16(static_cast<float>(value))));
}

bool is_frozen(const TrainConfig& c, const std::string& name) {
  ModelSpec spec;
  spec.freeze = c.training.freeze;
  return weft::is_frozen(spec, name);
}

// A run with frozen tensors goes on after a stop as if it had not stopped; the frozen are saved and loaded
// with the bits that they had at the start, and have no moments.
TEST_F(ResumeTest, FrozenTensorsKeepTheirBitsThroughStopAndResume) {
  for (std::size_t i = 0; i < kFrozenCuts.size(); ++i) {
    for (const bool bf16 : {false, true}) {
      const std::string tag = fmt::format("{}{}", i, bf16 ? "bf16" : "");
      const auto frozen = [&](const std::string& save) {
        TrainConfig c = config(1, save + tag);
        kFrozenCuts[i].apply(c);
        c.training.bf16 = bf16;
        c.training.freeze = {"decoder.layers.1.*", "embedding.*", "*layernorm.weight"};
        return c;
      };
      const TrainConfig straight = frozen("straight");
      ::testing::internal::CaptureStderr();
      run_training(straight);
      const std::string report = ::testing::internal::GetCapturedStderr();
      TrainConfig stopped = frozen("stopped");
      stopped.training.exit_interval = 3;
      run_training(stopped);
      stopped.training.exit_interval = 0;
      stopped.checkpoint.load = stopped.checkpoint.save;
      EXPECT_EQ(notes_of_load(stopped), std::vector<std::string>());
      run_training(stopped);
      for (const char* kind : {"weight", "exp_avg", "exp_avg_sq"}) {
        EXPECT_TRUE(bytes_of("stopped" + tag, kind) == bytes_of("straight" + tag, kind)) << kind << tag;
      }
      TrainConfig still = frozen("still");
      still.training.freeze.clear();
      still.optimizer.lr = 0;
      run_training(still);
      const auto start = tensors_of("still" + tag, "weight"), end = tensors_of("straight" + tag, "weight"),
                 moments = tensors_of("straight" + tag, "exp_avg");
      std::int64_t count = 0, all = 0;
      ASSERT_EQ(start.size(), end.size());
      for (const auto& [name, values] : start) {
        const bool is = is_frozen(straight, name);
        count += is ? static_cast<std::int64_t>(values.size()) : 0;
        all += static_cast<std::int64_t>(values.size());
        EXPECT_EQ(moments.contains(name), !is) << name << tag;
        // Frozen weights have the compute dtype alone.
        std::vector<double> kept = values;
        if (bf16 && is) {
          for (double& v : kept) v = rounded(v);
        }
        EXPECT_EQ(end.at(name) == kept, is) << name << tag;
      }
      const std::string expected = fmt::format("{} of {} parameters are frozen", count, all);
      EXPECT_NE(report.find(expected), std::string::npos) << expected << " is not in: " << report;
    }
  }
}

// From a checkpoint of all tensors the frozen ones take their weights and leave the moments; a checkpoint
// with frozen tensors gives them, when they train again, moments of zero. Both are said.
TEST_F(ResumeTest, FreezingAndUnfreezing) {
  for (std::size_t i = 0; i < kFrozenCuts.size(); ++i) {
    const std::string whole = fmt::format("whole{}", i), part = fmt::format("part{}", i),
                      again = fmt::format("again{}", i), copy = fmt::format("copy{}", i);
    const auto run = [&](const std::string& save, const std::string& load, bool freeze, std::int64_t exit) {
      TrainConfig c = config(1, save);
      kFrozenCuts[i].apply(c);
      c.training.exit_interval = exit;
      if (!load.empty()) c.checkpoint.load = folder_ / load;
      if (freeze) c.training.freeze = {"decoder.layers.0.*", "decoder.layers.3.mlp.*"};
      ::testing::internal::CaptureStderr();
      run_training(c);
      return std::pair{c, ::testing::internal::GetCapturedStderr()};
    };
    run(whole, "", false, 2);
    const auto [frozen, report] = run(part, whole, true, 4);
    const auto before = tensors_of(whole, "weight"), after = tensors_of(part, "weight");
    const auto moments = tensors_of(part, "exp_avg_sq");
    int count = 0;
    for (const auto& [name, values] : before) {
      const bool is = is_frozen(frozen, name);
      count += is ? 1 : 0;
      EXPECT_EQ(after.at(name) == values, is) << name << i;
      EXPECT_EQ(moments.contains(name), !is) << name << i;
    }
    const std::string left = fmt::format("optimizer state of {} frozen tensors is not loaded", count);
    EXPECT_NE(report.find(left), std::string::npos) << left << " is not in: " << report;

    TrainConfig c = config(1, again);
    kFrozenCuts[i].apply(c);
    c.checkpoint.load = folder_ / part;
    load_and_save(c, folder_ / copy);
    EXPECT_TRUE(bytes_of(copy, "weight") == bytes_of(part, "weight"));
    for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
      const auto kept = tensors_of(part, kind);
      for (const auto& [name, values] : tensors_of(copy, kind)) {
        const bool is = is_frozen(frozen, name);
        EXPECT_EQ(values, is ? std::vector<double>(values.size(), 0.0) : kept.at(name)) << kind << name << i;
      }
      EXPECT_EQ(tensors_of(copy, kind).size(), before.size());
    }
    const auto [thawed, said] = run(again, part, false, 0);
    const std::string zero = fmt::format("{} tensors were frozen", count);
    EXPECT_NE(said.find(zero), std::string::npos) << zero << " is not in: " << said;
    for (const auto& [name, values] : tensors_of(again, "weight")) EXPECT_NE(values, after.at(name)) << name;
  }
}

// A Hugging Face folder has no optimizer state: the first step's decay must not be taken from nothing. With
// a learning rate of 0 the weights are what was imported, bit for bit, in the file's precision as in bf16.
TEST_F(ResumeTest, AStepWithoutALearningRateLeavesImportedWeightsAlone) {
  for (const char* family : {"gpt2", "llama", "llama3_rope_tied"}) {
    const std::filesystem::path model = testing::golden(std::string("models/") + family);
    for (const auto kind : {OptimizerConfig::Kind::kAdam, OptimizerConfig::Kind::kSgd}) {
      for (const bool cut : {false, true}) {
        const std::string save = fmt::format("{}{}{}", family, static_cast<int>(kind), cut);
        TrainConfig c;
        c.checkpoint.load = model;
        c.checkpoint.save = folder_ / save;
        c.data.batches = folder_ / "batches.safetensors";
        c.training.micro_batch_size = 2;
        c.training.train_iters = 1;
        c.training.bf16 = true;
        c.optimizer.optimizer = kind;
        c.optimizer.lr = 0;
        c.optimizer.weight_decay = 0.1;
        c.log.metrics = folder_ / (save + ".jsonl");
        if (cut) {
          c.parallel.ranks = 4;
          c.parallel.tensor_model_parallel_size = 2;
          c.parallel.use_distributed_optimizer = true;
          c.parallel.overlap_grad_reduce = c.parallel.overlap_param_gather = true;
          c.parallel.ddp_bucket_size = 200;
        }
        EXPECT_EQ(run_training(c).iteration, 1);
        EXPECT_GT(steps(save).front().grad_norm, 0);

        testing::TestRank rank;
        const HuggingFaceWeights imported(model);
        const CheckpointReader saved(folder_ / save);
        ASSERT_EQ(saved.names().size(), imported.names().size());
        for (const std::string& name : imported.names()) {
          const auto read = [&](const WeightSource& source) {
            const Tensor out = rank.lane().alloc(DType::kF32, source.shape(name), "test");
            source.read(rank.lane(), name, -1, 0, 0, out);
            return std::vector<std::byte>(out.raw(), out.raw() + out.bytes());
          };
          EXPECT_TRUE(read(saved) == read(imported)) << name << " of " << save;
        }

        // What the model computes with, before and after.
        use_loaded_model(c);
        c = resolved(c);
        c.data.seq_length = kSequence;
        const EngineOptions options = EngineOptions::from(c);
        run_local_ranks({.ranks = options.layout.world()}, [&](Communicator& world) {
          testing::TestRank own;
          const Groups groups(world, options.layout);
          Engine engine(own.lane(), groups, options);
          load_weights(model, own.lane(), engine);
          const auto bits = [&] {
            const Tensor& w = engine.buffer().weights();
            return std::vector<std::byte>(w.raw(), w.raw() + w.bytes());
          };
          const std::vector<std::byte> before = bits();
          const MicrobatchSource source = [&](std::int64_t, Batch& out) {
            out = Batch{};
            out.rows = 2;
            out.sequence_length = kSequence;
            for (int t = 0; t < 2 * kSequence; ++t)
              out.tokens.push_back(static_cast<std::int32_t>(t % kVocabulary));
            out.labels = out.tokens;
            out.sample_ids = {0, 1};
            out.target_tokens = 2 * kSequence;
          };
          const StepResult result =
              engine.train_step({.microbatches = 1, .source = source, .lr = 0, .weight_decay = 0.1});
          engine.flush();
          EXPECT_GT(result.grad_norm, 0);
          EXPECT_TRUE(bits() == before) << save;
        });
      }
    }
  }
}

}  // namespace
}  // namespace weft
