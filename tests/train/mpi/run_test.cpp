// weft train under mpirun: the same bits as thread ranks, and an end with the right message whatever happens
// to a rank.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "checkpoint/checkpoint.hpp"
#include "io/safetensors.hpp"
#include "support/golden.hpp"
#include "support/rank.hpp"
#include "support/timeline.hpp"
#include "train/metrics.hpp"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using testing::TemporaryFolder;

constexpr std::int64_t kRows = 8, kSequence = 16, kVocabulary = 31;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class MpiRun : public ::testing::Test {
 protected:
  // `steps` batches of random tokens.
  std::string batches(std::int64_t steps) {
    std::vector<std::int32_t> ids;
    for (const double v : testing::random_values(3, 2 * steps * kRows * kSequence)) {
      ids.push_back(static_cast<std::int32_t>((v + 1) / 2 * (kVocabulary - 1)));
    }
    const Shape shape{steps, kRows, kSequence};
    const std::filesystem::path path = folder_ / "batches.safetensors";
    write_safetensors(path, {{"input_ids", Tensor::borrow(ids.data(), DType::kI32, shape)},
                             {"labels", Tensor::borrow(ids.data() + shape.elems(), DType::kI32, shape)}});
    return path.string();
  }

  std::string train(std::int64_t steps, const std::string& more) {
    return fmt::format(
        "{} train --num-layers 4 --hidden-size 16 --num-attention-heads 4 --vocab-size {} --batches {} --lr "
        "1e-2 "
        "--micro-batch-size 1 --hidden-dropout 0.1 --distributed-timeout-seconds 6 --log-interval 1 "
        "--cpu-threads 1 {}",
        WEFT_BINARY, kVocabulary, batches(steps), more);
  }
  static std::string mpirun(int ranks) {
    return fmt::format("{} --allow-run-as-root --oversubscribe -n {} ", WEFT_MPIEXEC, ranks);
  }

  // A shell command in a process group of its own; what it prints goes to a file.
  struct Running {
    pid_t pid;
    std::filesystem::path output;
    Clock::time_point start;
  };
  Running start(const std::string& command) {
    const std::filesystem::path output = folder_ / fmt::format("output{}", ++commands_);
    const pid_t pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      execl("/bin/sh", "sh", "-c", fmt::format("exec {} >{} 2>&1", command, output.string()).c_str(),
            nullptr);
      _exit(127);
    }
    return {pid, output, Clock::now()};
  }
  struct Ended {
    int status;
    double seconds;
    std::string output;
  };
  // Waits for at most a minute, then kills it.
  static Ended wait(const Running& running) {
    int status = 0;
    while (waitpid(running.pid, &status, WNOHANG) == 0) {
      if (Clock::now() - running.start > std::chrono::seconds(100)) {
        kill(-running.pid, SIGKILL);
        waitpid(running.pid, &status, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            std::chrono::duration<double>(Clock::now() - running.start).count(), read_text(running.output)};
  }
  Ended run(const std::string& command) { return wait(start(command)); }

  // The processes of the run's ranks, by rank (mpirun starts them in this order), once all are there.
  static std::vector<pid_t> ranks_of(const Running& running, std::size_t count) {
    for (int tries = 0; tries < 500; ++tries) {
      std::vector<pid_t> found;
      std::istringstream children(
          read_text(fmt::format("/proc/{}/task/{}/children", running.pid, running.pid)));
      for (pid_t pid = 0; children >> pid;) {
        const std::string name = read_text(fmt::format("/proc/{}/comm", pid));
        if (name.starts_with("weft")) found.push_back(pid);
      }
      if (found.size() == count) return found;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return {};
  }
  // Whether these processes are gone, or have ended and wait for their parent to look, within a time.
  static bool end_within(const std::vector<pid_t>& processes, std::chrono::seconds time) {
    const auto ended = [](pid_t pid) {
      const std::string stat = read_text(fmt::format("/proc/{}/stat", pid));
      const std::size_t name_end = stat.rfind(')');  // "pid (name) state ..."
      return name_end == std::string::npos || stat.substr(name_end + 2, 1) == "Z";
    };
    for (const Clock::time_point start = Clock::now(); Clock::now() - start < time;) {
      if (std::all_of(processes.begin(), processes.end(), ended)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  static bool ends_within(const Running& running, std::chrono::seconds time) {
    return end_within({running.pid}, time);
  }

  // Until the run has made this many steps.
  static void wait_for_step(const Running& running, int step) {
    for (int tries = 0; tries < 1500; ++tries) {
      if (read_text(running.output).find(fmt::format("iteration {:8}/", step)) != std::string::npos) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  TemporaryFolder folder_;
  int commands_ = 0;
};

std::map<std::string, std::vector<std::byte>> contents(const std::filesystem::path& folder) {
  const CheckpointReader reader(folder);
  testing::TestRank rank;
  std::map<std::string, std::vector<std::byte>> all;
  for (const CheckpointTensor& tensor : reader.info().tensors) {
    const Tensor out = rank.lane().alloc(tensor.dtype, tensor.shape, "test");
    reader.read_kind(rank.lane(), tensor.kind, tensor.name, -1, 0, 0, out);
    all[tensor.kind + "/" + tensor.name].assign(out.raw(), out.raw() + out.bytes());
  }
  return all;
}

TEST_F(MpiRun, ProcessesEqualThreadsBitForBit) {
  for (const char* layout :
       {"--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel "
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --bf16",
        "--pipeline-model-parallel-size 2 --pipeline-schedule interleaved "
        "--num-virtual-stages-per-pipeline-rank 2",
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1 "
        "--tp-comm-overlap --sequence-parallel"}) {
    const auto files = [&](const char* name) {
      return fmt::format("{} --save {} --metrics {}", layout, (folder_ / name).string(),
                         (folder_ / (std::string(name) + ".jsonl")).string());
    };
    std::filesystem::remove_all(folder_ / "threads");
    std::filesystem::remove_all(folder_ / "processes");
    const Ended threads = run(train(4, files("threads") + " --ranks 8"));
    ASSERT_EQ(threads.status, 0) << threads.output;
    const Ended processes = run(mpirun(8) + train(4, files("processes")));
    ASSERT_EQ(processes.status, 0) << processes.output;
    EXPECT_TRUE(contents(folder_ / "threads") == contents(folder_ / "processes")) << layout;
    const auto a = read_metrics(folder_ / "threads.jsonl"), b = read_metrics(folder_ / "processes.jsonl");
    ASSERT_EQ(a.size(), 4u);
    ASSERT_EQ(b.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(a[i].lm_loss, b[i].lm_loss);
      EXPECT_EQ(a[i].grad_norm, b[i].grad_norm);
    }
  }
}

TEST_F(MpiRun, ATimelineHoldsEveryProcess) {
  const std::string trace = (folder_ / "trace.json").string();
  const Ended ended =
      run(mpirun(4) + train(3, fmt::format("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
                                           "--trace {} --trace-start-step 2",
                                           trace)));
  ASSERT_EQ(ended.status, 0) << ended.output;
  const testing::TimelineFile file = testing::read_timeline(trace);
  EXPECT_EQ(testing::fault_of(file), "");
  EXPECT_EQ(file.processes.size(), 4u);
  EXPECT_EQ(file.notes.at("clocks"), "all ranks read one steady clock");
  for (const auto& [rank, name] : file.processes) {
    const auto schedule = file.of("schedule", rank);
    const auto forward = std::count_if(schedule.begin(), schedule.end(),
                                       [](const auto& e) { return e.name.starts_with("forward "); });
    EXPECT_EQ(forward, 2 * kRows) << name;
    for (const char* row : {"tp", "world", "pp.activation.0-1", "waits"}) {
      EXPECT_FALSE(file.of(row, rank).empty()) << name << " " << row;
    }
  }
}

// "memory: planned 862.8 MiB for 4 ranks, touched 862.8 MiB, the processes grew by 876.1 MiB"
double number_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + words.size(), nullptr);
}

TEST_F(MpiRun, ProcessesGrowByThePlan) {
  const std::string large =
      " --hidden-size 384 --num-layers 8 --num-attention-heads 4 --vocab-size 31 --lr 1e-3 ";
  const std::string command = fmt::format("{} train --batches {} --micro-batch-size 1 --cpu-threads 1 {}",
                                          WEFT_BINARY, batches(2), large);
  for (const char* layout :
       {"--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"}) {
    const Ended ended = run(mpirun(4) + command + layout);
    ASSERT_EQ(ended.status, 0) << ended.output;
    const double planned = number_after(ended.output, "memory: planned "),
                 grown = number_after(ended.output, "grew by ");
    EXPECT_GT(planned, 200) << "MiB: too small to tell";
    EXPECT_GE(grown, planned) << ended.output;
    EXPECT_LE(grown, 1.05 * planned) << ended.output;
  }
}

constexpr const char* kCube = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2";

// At five moments, from the start of the program on.
TEST_F(MpiRun, AKilledRankEndsTheRun) {
  for (const int after : {0, 1, 2, 5, 9}) {
    const Running running = start(mpirun(8) + train(400, kCube));
    const std::vector<pid_t> ranks = ranks_of(running, 8);
    ASSERT_EQ(ranks.size(), 8u);
    if (after > 0) wait_for_step(running, after);
    const Clock::time_point killed = Clock::now();
    kill(ranks[static_cast<std::size_t>(after % 8)], SIGKILL);
    EXPECT_TRUE(end_within(ranks, std::chrono::seconds(30))) << read_text(running.output);
    // Open MPI 4.1's mpirun has been seen to stay, all ranks gone, when one was killed while they were being
    // started.
    if (after == 0 && !ends_within(running, std::chrono::seconds(10))) {
      fmt::print("mpirun stayed although all ranks had ended\n");
      kill(-running.pid, SIGKILL);
      wait(running);
      continue;
    }
    const Ended ended = wait(running);
    EXPECT_NE(ended.status, 0);
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - killed).count(), 30) << ended.output;
    // mpirun names the rank that was killed. One that had not started MPI yet it reports in several ways, by
    // exit code or not by number at all; the run's end is what counts there.
    const bool named = after == 0 || ended.output.find("signal 9") != std::string::npos;
    EXPECT_TRUE(named) << ended.output;
  }
}

TEST_F(MpiRun, AStoppedRankIsNamed) {
  const Running running = start(mpirun(8) + train(400, kCube));
  const std::vector<pid_t> ranks = ranks_of(running, 8);
  ASSERT_EQ(ranks.size(), 8u);
  wait_for_step(running, 2);
  const Clock::time_point stopped = Clock::now();
  kill(ranks[5], SIGSTOP);
  const Ended ended = wait(running);
  kill(ranks[5], SIGCONT);
  EXPECT_NE(ended.status, 0);
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - stopped).count(), 30) << ended.output;
  for (const char* part : {"step ", "group", "rank 5"}) {
    EXPECT_NE(ended.output.find(part), std::string::npos) << part << "\n" << ended.output;
  }
}

TEST_F(MpiRun, UnlikeOptionsOfOneRankAreNamed) {
  const std::string one = train(4, kCube);
  const Ended ended = run(fmt::format("{} {} : -n 5 {} --seed 9", mpirun(3), one, one));
  EXPECT_EQ(ended.status, 2) << ended.output;
  EXPECT_LT(ended.seconds, 30);
  for (const char* part : {"rank 3", "seed = 9", "seed = 1234"}) {
    EXPECT_NE(ended.output.find(part), std::string::npos) << part << "\n" << ended.output;
  }
}

TEST_F(MpiRun, WrongWorldsAreRefusedAndNothingIsTouched) {
  const std::string save = " --save " + (folder_ / "save").string();
  // 3 processes for tp 2; --ranks that is not the world's.
  const Ended three = run(mpirun(3) + train(4, "--tensor-model-parallel-size 2" + save));
  EXPECT_EQ(three.status, 2) << three.output;
  EXPECT_NE(three.output.find("--ranks 3 is not divisible by 2"), std::string::npos) << three.output;
  const Ended other = run(mpirun(2) + train(4, "--ranks 4" + save));
  EXPECT_EQ(other.status, 2) << other.output;
  EXPECT_NE(other.output.find("--ranks 4"), std::string::npos) << other.output;
  // Copies that a launcher did not start: MPI's world is one.
  const Ended alone = run(train(4, "--launcher mpi --ranks 4" + save));
  EXPECT_EQ(alone.status, 2) << alone.output;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "save"));
}

// Every rank is told to stop: a save at a step boundary, and the run goes on from there bit for bit.
// What runs nothing ends in the ordinary way, and one process says it.
TEST_F(MpiRun, TheConfigurationIsPrintedOnce) {
  const Ended ended = run(mpirun(2) + train(2, "--tensor-model-parallel-size 2 --print-config"));
  EXPECT_EQ(ended.status, 0) << ended.output;
  const std::size_t first = ended.output.find("tensor_model_parallel_size");
  ASSERT_NE(first, std::string::npos) << ended.output;
  EXPECT_EQ(ended.output.find("tensor_model_parallel_size", first + 1), std::string::npos);
}

TEST_F(MpiRun, ASignalSavesAndTheRunGoesOn) {
  const std::string save = (folder_ / "save").string(), straight = (folder_ / "straight").string();
  const Running running = start(mpirun(4) + train(60, fmt::format("{} --save {}", kCube, save)));
  ASSERT_EQ(ranks_of(running, 4).size(), 4u);
  wait_for_step(running, 3);
  for (const pid_t rank : ranks_of(running, 4)) kill(rank, SIGTERM);
  const Ended stopped = wait(running);
  EXPECT_NE(stopped.status, 0);
  EXPECT_TRUE(has_checkpoint(save)) << stopped.output;
  const Ended rest = run(mpirun(4) + train(60, fmt::format("{} --load {} --save {}", kCube, save, save)));
  ASSERT_EQ(rest.status, 0) << rest.output;
  const Ended whole = run(mpirun(4) + train(60, fmt::format("{} --save {}", kCube, straight)));
  ASSERT_EQ(whole.status, 0) << whole.output;
  EXPECT_TRUE(contents(save) == contents(straight));
}

}  // namespace
}  // namespace weft
