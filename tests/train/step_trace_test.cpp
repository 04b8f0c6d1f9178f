// --trace: what is in the file, that it fits together, and that taking it changes no bit of a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "io/atomic_file.hpp"
#include "support/golden.hpp"
#include "support/rank.hpp"
#include "support/timeline.hpp"
#include "train/metrics.hpp"
#include "train/timeline.hpp"
#include "train/trainer.hpp"

namespace weft {
namespace {

using testing::fault_of;
using testing::TemporaryFolder;
using testing::TimelineFile;

constexpr std::int64_t kSteps = 5, kRows = 8, kSequence = 12, kVocabulary = 31;

TracedOperation operation(TraceRow row, const char* name, double start, double end, const char* group = "") {
  TracedOperation op = on_row(row, name);
  op.start = start;
  op.end = end;
  op.group = group;
  return op;
}

std::string whole(const std::string& events) {
  return timeline_head({{"program", "we\"ft"}}) + events + kTimelineTail;
}

TEST(Timeline, RowsStandInTheirOrderAndOverlapsBeside) {
  const TimelineFile file = testing::parse_timeline(whole(timeline_events(
      {.rank = 3, .name = "rank 3", .shift = 10},
      {operation(TraceRow::kWaits, "wait", 1, 2), operation(TraceRow::kGroup, "all_reduce", 0, 4, "world"),
       operation(TraceRow::kGroup, "late", 3, 6, "dp"), operation(TraceRow::kGroup, "early", 0, 5, "dp"),
       operation(TraceRow::kGroup, "last", 5, 7, "dp"), operation(TraceRow::kCompute, "gemm", 0.0004, 1.0016),
       operation(TraceRow::kGroup, "send", 0, 1, "pp.activation.0-1"),
       operation(TraceRow::kSchedule, "inner", 0, 1), operation(TraceRow::kSchedule, "outer", 0, 2)})));
  const std::vector<std::string> expected = {"schedule", "compute", "pp.activation.0-1", "dp", "dp (2)",
                                             "world",    "waits"};
  std::vector<std::string> rows;
  for (const auto& [place, name] : file.rows) {
    EXPECT_EQ(place.first, 3);
    rows.push_back(name);
  }
  EXPECT_EQ(rows, expected);
  EXPECT_EQ(file.processes, (std::map<int, std::string>{{3, "rank 3"}}));
  EXPECT_EQ(file.notes.at("program"), "we\"ft");
  EXPECT_EQ(fault_of(file), "");
  EXPECT_EQ(file.of("dp").size(), 2u);
  EXPECT_EQ(file.of("dp (2)").at(0).name, "late");
  EXPECT_EQ(file.of("compute").at(0).start, 10'000);
  EXPECT_EQ(file.of("compute").at(0).end, 11'002);
}

TEST(Timeline, TextsAreEscaped) {
  const std::string odd = "a \"b\" \\ \n\t\x01 \xff";
  const TimelineFile file = testing::parse_timeline(whole(
      timeline_events({.rank = 0, .name = odd}, {operation(TraceRow::kGroup, odd.c_str(), 0, 1, "g\"")})));
  EXPECT_EQ(file.processes.at(0).substr(0, 11), odd.substr(0, 11));
  EXPECT_EQ(file.of("g\"").size(), 1u);
}

// What the other tests go by.
TEST(Timeline, FaultsAreSeen) {
  const auto of = [](std::vector<TracedOperation> operations) {
    return fault_of(testing::parse_timeline(
        whole(timeline_events({.rank = 0, .name = "rank 0"}, std::move(operations)))));
  };
  EXPECT_EQ(of({operation(TraceRow::kCompute, "a", 0, 4), operation(TraceRow::kCompute, "b", 1, 4)}), "");
  EXPECT_EQ(of({operation(TraceRow::kCompute, "a", 0, 4), operation(TraceRow::kCompute, "b", 4, 5)}), "");
  EXPECT_NE(of({operation(TraceRow::kCompute, "a", 0, 4), operation(TraceRow::kCompute, "b", 3, 5)}), "");
  EXPECT_ANY_THROW(testing::parse_timeline(timeline_head({}) + R"({"name":"a","ph":"X"})" + kTimelineTail));
}

class StepTraceTest : public ::testing::Test {
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

  TrainConfig config(const std::string& name, bool trace) const {
    TrainConfig c;
    c.model.num_layers = 4;
    c.model.hidden_size = 16;
    c.model.num_attention_heads = 4;
    c.model.vocab_size = kVocabulary;
    c.model.max_position_embeddings = kSequence;
    c.model.hidden_dropout = 0.2;
    c.data.batches = folder_ / "batches.safetensors";
    c.training.micro_batch_size = 1;
    c.optimizer.lr = 1e-2;
    c.log.metrics = folder_ / (name + ".jsonl");
    c.checkpoint.save = folder_ / name;
    if (trace) c.log.trace = folder_ / (name + ".json");
    return c;
  }
  // tp 2, pp 2 with two chunks on each rank, dp 2; all that may overlap does.
  TrainConfig cube(const std::string& name, bool trace) const {
    TrainConfig c = config(name, trace);
    c.parallel.ranks = 8;
    c.parallel.tensor_model_parallel_size = 2;
    c.parallel.pipeline_model_parallel_size = 2;
    c.parallel.pipeline_schedule = ParallelConfig::Schedule::kInterleaved;
    c.parallel.num_virtual_stages_per_pipeline_rank = 2;
    c.parallel.sequence_parallel = true;
    c.parallel.use_distributed_optimizer = true;
    c.parallel.overlap_grad_reduce = true;
    c.parallel.overlap_param_gather = true;
    c.parallel.ddp_bucket_size = 500;
    return c;
  }
  TimelineFile timeline(const std::string& name) const {
    return testing::read_timeline(folder_ / (name + ".json"));
  }
  // Every file of a checkpoint, by name.
  std::map<std::string, std::string> contents(const std::string& name) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / name)) {
      if (entry.path().extension() == ".safetensors") {
        all[entry.path().lexically_relative(folder_ / name)] = read_file(entry.path());
      }
    }
    return all;
  }
  static std::string said_by(const TrainConfig& c) {
    ::testing::internal::CaptureStderr();
    run_training(c);
    return ::testing::internal::GetCapturedStderr();
  }

  TemporaryFolder folder_;
};

std::int64_t count(const std::vector<TimelineFile::Event>& events, const std::string& begin) {
  return std::count_if(events.begin(), events.end(),
                       [&](const auto& e) { return e.name.starts_with(begin); });
}

TEST_F(StepTraceTest, HoldsEveryRankAndActionOfItsSteps) {
  run_training(cube("traced", true));
  const TimelineFile file = timeline("traced");
  EXPECT_EQ(fault_of(file), "");
  ASSERT_EQ(file.processes.size(), 8u);
  EXPECT_EQ(file.processes.at(0), "rank 0 (tp 0, pp 0, dp 0)");
  EXPECT_EQ(file.processes.at(7), "rank 7 (tp 1, pp 1, dp 1)");
  EXPECT_EQ(file.notes.at("steps"), "3 to 4 of this run");
  constexpr std::int64_t kTraced = 2, kChunks = 2, kMicrobatches = kRows / 2;
  for (const auto& [rank, name] : file.processes) {
    const auto schedule = file.of("schedule", rank);
    EXPECT_EQ(count(schedule, "step"), kTraced) << name;
    EXPECT_EQ(count(schedule, "forward "), kMicrobatches * kChunks * kTraced) << name;
    EXPECT_EQ(count(schedule, "backward "), kMicrobatches * kChunks * kTraced) << name;
    EXPECT_EQ(count(schedule, "weight grad "), kMicrobatches * kChunks * kTraced) << name;
    for (const char* once : {"norm", "optimizer", "finalize gradients"}) {
      EXPECT_EQ(count(schedule, once), kTraced) << name << " " << once;
    }
    EXPECT_EQ(count(schedule, "data"), kMicrobatches * kChunks * kTraced) << name;
    std::set<std::pair<std::int64_t, std::int64_t>> seen;
    for (const auto& e : schedule) {
      if (e.name.starts_with("forward ")) seen.emplace(e.microbatch, e.chunk);
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(kMicrobatches * kChunks)) << name;
    EXPECT_GT(count(file.of("compute", rank), "gemm"), 0) << name;
    EXPECT_FALSE(file.of("waits", rank).empty()) << name;
    EXPECT_EQ(count(schedule, "send "), count(schedule, "receive ")) << name;
    // Every bucket's gradients and weights have come within the timeline, those of the last step too.
    std::int64_t reductions = 0, gathers = 0;
    for (const auto& [place, row] : file.rows) {
      if (place.first != rank || !row.starts_with("dp")) continue;
      reductions += count(file.of(row, rank), "reduce_scatter");
      gathers += count(file.of(row, rank), "all_gather");
    }
    EXPECT_GT(reductions, kTraced) << name;
    EXPECT_EQ(gathers, reductions) << name;
    // Every group has moved something.
    for (const char* row : {"tp", "dp", "world", "pp.activation.0-1", "pp.gradient.0-1"}) {
      const auto events = file.of(row, rank);
      EXPECT_FALSE(events.empty()) << name << " " << row;
      for (const auto& e : events) EXPECT_GT(e.bytes, 0) << name << " " << row << " " << e.name;
    }
  }
}

// A collective of several ranks ends for none of them before the last has started it, by the common clock.
TEST_F(StepTraceTest, RanksShareAClock) {
  run_training(cube("traced", true));
  const TimelineFile file = timeline("traced");
  std::vector<std::vector<TimelineFile::Event>> world;
  for (int rank = 0; rank < 8; ++rank) {
    world.push_back(file.of("world", rank));
    ASSERT_EQ(world.back().size(), world.front().size());
  }
  ASSERT_FALSE(world.front().empty());
  for (std::size_t i = 0; i < world.front().size(); ++i) {
    std::int64_t last = 0, first_end = world.front()[i].end;
    for (const auto& events : world) {
      last = std::max(last, events[i].start);
      first_end = std::min(first_end, events[i].end);
    }
    EXPECT_LE(last, first_end) << i;
  }
  EXPECT_EQ(file.notes.at("clocks"), "all ranks read one steady clock");
}

TEST_F(StepTraceTest, ChangesNoBit) {
  run_training(cube("plain", false));
  run_training(cube("traced", true));
  const auto plain = contents("plain");
  EXPECT_FALSE(plain.empty());
  EXPECT_TRUE(plain == contents("traced"));
  const auto a = read_metrics(folder_ / "plain.jsonl"), b = read_metrics(folder_ / "traced.jsonl");
  ASSERT_EQ(a.size(), static_cast<std::size_t>(kSteps));
  ASSERT_EQ(b.size(), a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].lm_loss, b[i].lm_loss);
    EXPECT_EQ(a[i].grad_norm, b[i].grad_norm);
  }
}

TEST_F(StepTraceTest, OneRankHasNoCollectives) {
  TrainConfig c = config("one", true);
  c.log.trace_start_step = 1;
  c.log.trace_steps = 1;
  run_training(c);
  const TimelineFile file = timeline("one");
  EXPECT_EQ(fault_of(file), "");
  std::set<std::string> rows;
  for (const auto& [place, name] : file.rows) rows.insert(name);
  EXPECT_EQ(rows, (std::set<std::string>{"schedule", "compute"}));
  EXPECT_EQ(count(file.of("schedule"), "forward "), kRows);
}

TEST_F(StepTraceTest, ARunThatEndsEarlyWritesWhatItHas) {
  TrainConfig c = config("early", true);
  c.log.trace_start_step = kSteps;
  c.log.trace_steps = 100;
  run_training(c);
  EXPECT_EQ(count(timeline("early").of("schedule"), "step"), 1);
}

TEST_F(StepTraceTest, ARunThatIsTooShortSaysSo) {
  TrainConfig c = config("short", true);
  c.log.trace_start_step = kSteps + 1;
  const std::string text = said_by(c);
  EXPECT_NE(text.find("this run took 5 steps, and --trace-start-step is 6"), std::string::npos) << text;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "short.json"));
}

// The steps are counted within the run, not from the start of the training.
TEST_F(StepTraceTest, AResumedRunCountsItsOwnSteps) {
  TrainConfig first = config("resumed", false);
  first.training.exit_interval = 3;
  run_training(first);
  TrainConfig second = config("resumed", true);
  second.checkpoint.load = second.checkpoint.save;
  second.log.trace_start_step = 2;
  second.log.trace_steps = 1;
  run_training(second);
  EXPECT_EQ(count(timeline("resumed").of("schedule"), "step"), 1);
}

TEST_F(StepTraceTest, AFullDiskCostsTheTimelineAlone) {
  TrainConfig c = cube("full", false);
  c.log.trace = "/dev/full";
  const std::string text = said_by(c);
  EXPECT_NE(text.find("no timeline: --trace /dev/full"), std::string::npos) << text;
  EXPECT_EQ(read_metrics(folder_ / "full.jsonl").size(), static_cast<std::size_t>(kSteps));
}

TEST_F(StepTraceTest, AFolderThatIsNotThereIsSaidBeforeTheRun) {
  TrainConfig c = config("none", false);
  c.log.trace = folder_ / "missing" / "trace.json";
  try {
    run_training(c);
    FAIL() << "it ran";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("--trace " + c.log.trace), std::string::npos) << e.what();
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "missing"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
  // Nor is an input replaced.
  c.log.trace = c.data.batches;
  const std::string before = read_file(c.data.batches);
  EXPECT_THROW(run_training(c), ConfigError);
  EXPECT_EQ(read_file(c.data.batches), before);
}

}  // namespace
}  // namespace weft
