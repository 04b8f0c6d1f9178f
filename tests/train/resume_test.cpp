// A run that is stopped and goes on equals the run that was not stopped, bit for bit; every data-parallel
// layout starts from the same weights and draws the same dropout masks.
#include "resume.hpp"

namespace weft {
namespace {

using namespace resume;

TEST_F(ResumeTest, StoppedRunEqualsUninterruptedRun) {
  for (const int ranks : {1, 4}) {
    for (const bool bf16 : {false, true}) {
      const std::string tag = std::to_string(ranks) + (bf16 ? "bf16" : "");
      TrainConfig straight = config(ranks, "straight" + tag);
      straight.training.bf16 = bf16;
      run_training(straight);

      TrainConfig first = config(ranks, "stopped" + tag);
      first.training.bf16 = bf16;
      first.training.exit_interval = 4;
      EXPECT_EQ(run_training(first).iteration, 4);
      TrainConfig second = config(ranks, "stopped" + tag);
      second.training.bf16 = bf16;
      second.checkpoint.load = second.checkpoint.save;
      EXPECT_EQ(run_training(second).iteration, kSteps);

      for (const char* kind : {"weight", "exp_avg", "exp_avg_sq"}) {
        const std::vector<std::byte> expected = bytes_of("straight" + tag, kind);
        EXPECT_FALSE(expected.empty());
        EXPECT_TRUE(bytes_of("stopped" + tag, kind) == expected) << kind << " at " << tag;
      }
      const auto a = steps("straight" + tag), b = steps("stopped" + tag);
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i].lm_loss, b[i].lm_loss);
        EXPECT_EQ(a[i].grad_norm, b[i].grad_norm);
        EXPECT_EQ(a[i].lr, b[i].lr);
      }
    }
  }
}

// Tied embeddings on two stages, slices of the optimizer, interleaved stages: stopped and gone on is the
// same, bit for bit, also where the weights are still being gathered when the run is saved.
TEST_F(ResumeTest, StoppedRunEqualsUninterruptedRunOnEveryKindOfLayout) {
  const std::vector<Cut> cuts = {
      {.tp = 2, .pp = 2, .dp = 2, .distributed = true, .bucket = 500},
      {.pp = 2, .dp = 2, .schedule = Schedule::kInterleaved, .chunks = 2, .distributed = true},
      {.tp = 2, .pp = 2, .schedule = Schedule::kZbV, .chunks = 2},
      {.tp = 4, .dp = 2, .distributed = true, .bucket = 300},
      {.cp = 2},
      {.dp = 2, .cp = 2, .distributed = true, .cp_method = "a2a"},
      {.tp = 2, .pp = 2, .cp = 2, .schedule = Schedule::kZbV, .chunks = 2, .cp_method = "all_gather"},
  };
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const std::string straight_name = fmt::format("straight{}", i),
                      stopped_name = fmt::format("stopped{}", i);
    const auto run = [&](const std::string& save, std::int64_t exit, bool load) {
      TrainConfig c = config(1, save);
      cuts[i].apply(c);
      c.training.bf16 = true;
      c.training.exit_interval = exit;
      if (load) c.checkpoint.load = c.checkpoint.save;
      run_training(c);
    };
    run(straight_name, 0, false);
    run(stopped_name, 3, false);
    run(stopped_name, 0, true);
    for (const char* kind : {"weight", "exp_avg", "exp_avg_sq"}) {
      EXPECT_TRUE(bytes_of(stopped_name, kind) == bytes_of(straight_name, kind)) << kind << " of cut " << i;
    }
    const auto a = steps(straight_name), b = steps(stopped_name);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t k = 0; k < a.size(); ++k) EXPECT_EQ(a[k].lm_loss, b[k].lm_loss) << "cut " << i;
  }
}

// What is not finite is agreed on by all ranks, before any update, on every kind of layout.
TEST_F(ResumeTest, NonFiniteStepsStopOrAreLeftOutOnEveryRank) {
  const std::vector<Cut> cuts = {
      {},
      {.tp = 2, .dp = 2, .distributed = true},
      {.pp = 2, .dp = 2},
      {.tp = 2, .pp = 2, .schedule = Schedule::kZbV, .chunks = 2, .distributed = true},
      {.dp = 2, .cp = 2},
      {.pp = 2, .cp = 2, .distributed = true, .cp_method = "a2a"}};
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const auto base = [&](const std::string& save) {
      TrainConfig c = config(1, fmt::format("{}{}", save, i));
      cuts[i].apply(c);
      c.optimizer.lr_warmup_iters = 0;
      return c;
    };
    const auto message_of = [](const TrainConfig& c) {
      try {
        run_training(c);
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    // The loss of step 2, after an update beyond all measure.
    TrainConfig loss = base("loss");
    loss.optimizer.lr = 1e30;
    loss.optimizer.weight_decay = 0;
    loss.checkpoint.save_interval = 1;
    std::string text = message_of(loss);
    for (const char* part : {"rank ", "step 2", "the loss is not finite", "microbatch 0", "first shows"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    EXPECT_EQ(CheckpointReader(loss.checkpoint.save).info().iteration, 1) << "the last good checkpoint stays";
    // Gradients alone: a scale that overflows fp16.
    TrainConfig gradient = base("gradient");
    gradient.training.fp16 = true;
    gradient.optimizer.loss_scale = 1e30;
    text = message_of(gradient);
    for (const char* part : {"rank ", "step 1", "output_layer.weight of this rank"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    EXPECT_FALSE(has_checkpoint(gradient.checkpoint.save));
    // Left out: nothing moves, and Adam has not counted.
    gradient.training.on_nonfinite = TrainingConfig::OnNonfinite::kSkip;
    EXPECT_EQ(message_of(gradient), "");
    EXPECT_EQ(CheckpointReader(gradient.checkpoint.save).info().optimizer_steps, 0);
    TrainConfig still = base("still");
    still.training.fp16 = true;
    still.optimizer.loss_scale = 1;
    still.optimizer.lr = 0;
    run_training(still);
    EXPECT_TRUE(bytes_of(fmt::format("gradient{}", i), "weight") ==
                bytes_of(fmt::format("still{}", i), "weight"));
  }
}

// Saved on one layout, loaded on another and saved again without a step: every weight and moment is what it
// was; and a run that moves from layout to layout goes on as one that stays.
TEST_F(ResumeTest, AnyLayoutReadsWhatAnyLayoutWrote) {
  const std::vector<Cut> path = {
      {.tp = 2, .pp = 2, .dp = 2, .distributed = true},
      {.pp = 4, .dp = 2},
      {.tp = 4, .dp = 2, .distributed = true, .bucket = 700},
      {},
      {.pp = 2, .dp = 2, .schedule = Schedule::kInterleaved, .chunks = 2, .distributed = true, .bucket = 256},
      {.tp = 2, .pp = 2, .dp = 2, .distributed = true},
  };
  ASSERT_EQ(path.size(), static_cast<std::size_t>(kSteps));
  TrainConfig straight = config(1, "straight");
  Cut{}.apply(straight);
  run_training(straight);
  for (std::size_t i = 0; i < path.size(); ++i) {
    TrainConfig c = config(1, "moving");
    path[i].apply(c);
    c.training.exit_interval = 1;  // one step on each layout
    if (i > 0) {
      c.checkpoint.load = c.checkpoint.save;
      // What this layout has read is what stood there: written again, nothing has changed.
      load_and_save(c, folder_ / fmt::format("copy{}", i));
      for (const char* kind : {"weight", "exp_avg", "exp_avg_sq"}) {
        EXPECT_TRUE(bytes_of(fmt::format("copy{}", i), kind) == bytes_of("moving", kind))
            << kind << " at " << i;
      }
    }
    run_training(c);
  }
  const auto a = steps("straight"), b = steps("moving");
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i].lm_loss, b[i].lm_loss, 1e-5) << i;
    EXPECT_NEAR(a[i].grad_norm, b[i].grad_norm, 1e-4 * a[i].grad_norm) << i;
  }
}

// A sequence that was cut over ranks is cut in another way, or not at all, in the run that goes on.
TEST_F(ResumeTest, AnotherCutOfSequencesGoesOnWithinRounding) {
  const auto run = [&](const Cut& cut, const std::string& save, const std::string& load) {
    TrainConfig c = config(1, save);
    cut.apply(c);
    if (load.empty()) c.training.exit_interval = 3;
    if (!load.empty()) c.checkpoint.load = folder_ / load;
    run_training(c);
  };
  TrainConfig straight = config(1, "straight");
  Cut{}.apply(straight);
  run_training(straight);
  const auto expected = steps("straight");
  // Adam turns what is zero but for rounding, the gradient of a key bias, into steps of its rate.
  const auto weights_of = [&](const std::string& save) {
    auto all = tensors_of(save, "weight");
    std::erase_if(all, [](const auto& entry) { return entry.first.ends_with("linear_k.bias"); });
    return all;
  };
  const auto weights = weights_of("straight");
  for (const bool distributed : {false, true}) {
    const std::string first = fmt::format("first{}", distributed);
    run({.dp = 2, .cp = 2, .distributed = distributed}, first, "");
    const std::vector<Cut> next = {{},
                                   {.tp = 2},
                                   {.cp = 4, .distributed = distributed},
                                   {.tp = 2, .cp = 2, .cp_method = "all_gather"},
                                   {.pp = 2, .cp = 2, .distributed = distributed, .cp_method = "a2a"},
                                   {.cp = 3}};
    for (std::size_t i = 0; i < next.size(); ++i) {
      const std::string name = fmt::format("next{}{}", i, distributed);
      run(next[i], name, first);
      const auto found = steps(name);
      ASSERT_EQ(found.size(), 3u);
      for (std::size_t k = 0; k < found.size(); ++k) {
        EXPECT_EQ(found[k].tokens, expected[3 + k].tokens) << name;
        EXPECT_NEAR(found[k].lm_loss, expected[3 + k].lm_loss, 1e-5) << name;
        EXPECT_NEAR(found[k].grad_norm, expected[3 + k].grad_norm, 1e-4 * expected[3 + k].grad_norm) << name;
      }
      std::string worst;
      EXPECT_LE(testing::gradient_difference(weights_of(name), weights, &worst), 1e-4)
          << name << ": " << worst;
    }
  }
}

// The length is given in samples: what is left of them counts, whatever batch the run goes on with.
TEST_F(ResumeTest, SamplesCountThroughAChangeOfBatch) {
  TrainConfig first = config(1, "samples");
  first.training.train_samples = 40;
  first.training.global_batch_size = kRows;
  first.optimizer.lr_warmup_iters = 0;
  first.training.exit_interval = 2;
  EXPECT_EQ(run_training(first).iteration, 2);  // 16 samples
  RunSchedule schedule = RunSchedule::from(first);
  schedule.batch.global_batch_size = 4;
  EXPECT_EQ(schedule.last_iteration(2, 16), 8);  // 24 samples in batches of 4
  schedule.batch.global_batch_size = 16;
  EXPECT_EQ(schedule.last_iteration(2, 16), 3);
  EXPECT_EQ(schedule.last_iteration(5, 40), 5);
}

// A dynamic loss scale goes on where there was one; a constant one, or none, is what the options say.
TEST_F(ResumeTest, LossScaleIsRestoredOnlyWhereItMoves) {
  TrainConfig first = config(1, "scale");
  first.training.fp16 = true;
  first.optimizer.initial_loss_scale = 4096;
  first.training.exit_interval = 2;
  run_training(first);
  const auto resumed = [&](const std::string& metrics, const auto& change) {
    TrainConfig second = config(1, "scale");
    second.checkpoint.load = second.checkpoint.save;
    second.checkpoint.save.clear();
    second.log.metrics = folder_ / (metrics + ".jsonl");
    second.optimizer.initial_loss_scale = 1024;
    change(second);
    run_training(second);
    return steps(metrics).front().loss_scale;
  };
  EXPECT_EQ(resumed("dynamic", [](TrainConfig& c) { c.training.fp16 = true; }), 4096);
  EXPECT_EQ(resumed("constant",
                    [](TrainConfig& c) {
                      c.training.fp16 = true;
                      c.optimizer.loss_scale = 128;
                    }),
            128);
  EXPECT_EQ(resumed("none", [](TrainConfig&) {}), 1);
}

TEST_F(ResumeTest, EveryLayoutStartsFromTheSameWeightsAndMasks) {
  std::vector<StepMetrics> reference;
  std::vector<std::byte> weights;
  for (const auto& [tp, ranks] : {std::pair{1, 1}, {1, 2}, {1, 4}, {2, 2}, {4, 4}, {2, 6}}) {
    // lr 0: the saved weights are the initial ones.
    const std::string save = fmt::format("still{}of{}", tp, ranks);
    TrainConfig still = config(ranks, save);
    still.parallel.tensor_model_parallel_size = tp;
    still.optimizer.lr = 0;
    run_training(still);
    const std::vector<std::byte> start = bytes_of(save, "weight");
    if (weights.empty()) weights = start;
    EXPECT_TRUE(start == weights) << ranks << " ranks, tp " << tp;
    // Dropout is on: with other masks the losses would differ in the first digits.
    const std::vector<StepMetrics> now = steps(save);
    if (reference.empty()) reference = now;
    for (std::size_t i = 0; i < now.size(); ++i) {
      EXPECT_NEAR(now[i].lm_loss, reference[i].lm_loss, 1e-6) << ranks << " ranks, step " << i + 1;
      EXPECT_NEAR(now[i].grad_norm, reference[i].grad_norm, 1e-5 * reference[i].grad_norm);
    }
  }
  EXPECT_NE(reference[0].lm_loss, reference[1].lm_loss);
}

TEST_F(ResumeTest, AnotherLayoutGoesOnWithinRounding) {
  run_training(config(1, "straight"));
  TrainConfig first = config(4, "moved");
  first.training.exit_interval = 3;
  run_training(first);
  TrainConfig second = config(2, "moved");
  second.checkpoint.load = second.checkpoint.save;
  run_training(second);
  const auto a = steps("straight"), b = steps("moved");
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i].lm_loss, b[i].lm_loss, 1e-5);
}

TEST_F(ResumeTest, SignalSavesAtAStepBoundary) {
  std::vector<std::int32_t> ids;
  const std::int64_t many = 400;
  for (const double v : testing::random_values(4, many * kRows * kSequence)) {
    ids.push_back(static_cast<std::int32_t>((v + 1) / 2 * (kVocabulary - 1)));
  }
  write_safetensors(folder_ / "batches.safetensors",
                    {{"input_ids", Tensor::borrow(ids.data(), DType::kI32, {many, kRows, kSequence})}});
  TrainConfig straight = config(4, "straight");
  run_training(straight);

  TrainConfig first = config(4, "signalled");
  std::thread sender([&] {
    // As soon as a few steps are done.
    while (!std::filesystem::exists(first.log.metrics) ||
           std::filesystem::file_size(first.log.metrics) < 2000) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::raise(SIGTERM);
  });
  const TrainSummary stopped = run_training(first);
  sender.join();
  EXPECT_EQ(stopped.signal, SIGTERM);
  EXPECT_LT(stopped.iteration, many);
  EXPECT_EQ(read_checkpoint_info(folder_ / "signalled").iteration, stopped.iteration);
  TrainConfig second = first;
  second.checkpoint.load = second.checkpoint.save;
  run_training(second);
  EXPECT_TRUE(bytes_of("signalled", "weight") == bytes_of("straight", "weight"));
  EXPECT_TRUE(bytes_of("signalled", "exp_avg_sq") == bytes_of("straight", "exp_avg_sq"));
}

TEST_F(ResumeTest, AnotherSeedIsRefused) {
  TrainConfig first = config(1, "seeded");
  first.training.exit_interval = 2;
  run_training(first);
  TrainConfig second = config(1, "seeded");
  second.checkpoint.load = second.checkpoint.save;
  second.training.seed = 99;
  try {
    run_training(second);
    FAIL() << "resumed with another seed";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("--seed 99"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--seed 1234"), std::string::npos) << error.what();
  }
}

// A schedule has one owner: the options, the checkpoint, or, when they differ and nobody says which, neither.
TEST_F(ResumeTest, AnotherScheduleNeedsAWord) {
  TrainConfig first = config(1, "schedule");
  first.optimizer.lr = 6e-4;
  first.optimizer.lr_warmup_iters = 0;
  first.optimizer.lr_decay_style = OptimizerConfig::DecayStyle::kConstant;
  first.training.exit_interval = 3;
  run_training(first);
  TrainConfig second = first;
  second.training.exit_interval = 0;
  second.checkpoint.load = second.checkpoint.save;
  second.optimizer.lr_decay_style = OptimizerConfig::DecayStyle::kCosine;
  second.optimizer.min_lr = 6e-5;
  try {
    run_training(second);
    FAIL() << "resumed with another schedule";
  } catch (const ConfigError& error) {
    for (const char* part :
         {"min_lr 6e-05 (checkpoint: 0.0)", "lr_decay_style cosine (checkpoint: constant)"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("lr_decay_samples"), std::string::npos) << error.what();
  }
  second.checkpoint.override_opt_param_scheduler = true;
  run_training(second);
  EXPECT_NEAR(steps("schedule")[3].lr, 3.3e-4, 1e-9);  // cosine, 3 of 6 steps done
  EXPECT_GT(steps("schedule")[4].lr, 6e-5);
}

// What changes nothing is no difference: a constant rate may go on for longer.
TEST_F(ResumeTest, ALongerRunAtAConstantRateGoesOn) {
  TrainConfig first = config(1, "longer");
  first.optimizer.lr_decay_style = OptimizerConfig::DecayStyle::kConstant;
  first.training.train_iters = 3;
  run_training(first);
  TrainConfig second = first;
  second.training.train_iters = kSteps;
  second.checkpoint.load = second.checkpoint.save;
  EXPECT_EQ(run_training(second).iteration, kSteps);
}

// What another run has saved is not written over: with no --load, or with another run's.
TEST_F(ResumeTest, TheFolderOfAnotherRunIsRefused) {
  run_training(config(1, "first"));
  const std::vector<std::byte> weights = bytes_of("first", "weight");
  run_training(config(1, "other"));
  TrainConfig again = config(2, "first");
  for (const char* load : {"", "other"}) {
    again.checkpoint.load = *load == 0 ? "" : (folder_ / load).string();
    again.checkpoint.finetune = *load != 0;
    try {
      run_training(again);
      FAIL() << "wrote over another run";
    } catch (const ConfigError& error) {
      for (const char* part : {"--save ", "another run", "--load "})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(bytes_of("first", "weight") == weights);
}

// Weights alone (a converted checkpoint, --finetune) begin a new run.
TEST_F(ResumeTest, WeightsAloneBeginANewRun) {
  run_training(config(1, "first"));
  TrainConfig tuned = config(2, "tuned");
  tuned.checkpoint.load = folder_ / "first";
  tuned.checkpoint.finetune = true;
  tuned.optimizer.lr = 0;
  EXPECT_EQ(run_training(tuned).iteration, kSteps);
  EXPECT_TRUE(bytes_of("tuned", "weight") == bytes_of("first", "weight"));
  EXPECT_FALSE(bytes_of("tuned", "exp_avg") == bytes_of("first", "exp_avg"));
}

TEST_F(ResumeTest, RowsThatFillABatchCountNowhere) {
  run_training(config(1, "even"));
  TrainConfig uneven = config(3, "uneven");  // 8 rows over 3 ranks × 2 rows
  uneven.training.micro_batch_size = 2;
  run_training(uneven);
  const auto a = steps("even"), b = steps("uneven");
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i].lm_loss, b[i].lm_loss, 1e-5);
    EXPECT_EQ(a[i].tokens, b[i].tokens);
  }
}

// In the mean of the microbatches' means too: 8 microbatches of one row, on 3 ranks beside one that fills up.
TEST_F(ResumeTest, MicrobatchesThatFillABatchCountNowhere) {
  const auto run = [&](int ranks, const std::string& name) {
    TrainConfig c = config(ranks, name);
    c.training.calculate_per_token_loss = false;
    c.optimizer.optimizer = OptimizerConfig::Kind::kSgd;
    run_training(c);
    return steps(name);
  };
  const auto a = run(1, "mean1"), b = run(3, "mean3");
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i].lm_loss, b[i].lm_loss, 1e-5);
    EXPECT_NEAR(a[i].grad_norm, b[i].grad_norm, 1e-4 * a[i].grad_norm);
  }
}

}  // namespace
}  // namespace weft
