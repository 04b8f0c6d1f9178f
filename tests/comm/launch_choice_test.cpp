// --launcher: what the environment and MPI say must agree, or the run is refused.
#include "comm/mpi/launch_choice.hpp"

#include <gtest/gtest.h>

#include <map>

#include "core/check.hpp"

namespace weft {
namespace {

using Variables = std::map<std::string, std::string>;

std::vector<LauncherVariable> read(const Variables& environment) {
  return launcher_variables([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

struct Launch {
  LauncherChoice choice = LauncherChoice::kAuto;
  std::int64_t ranks = 0;
  Variables environment;
  int mpi_size = 0;  // 0: this build has no MPI
};

// "threads", "mpi", or the refusal.
std::string outcome(const Launch& launch, bool* started = nullptr) {
  LaunchRequest request;
  request.choice = launch.choice;
  request.ranks = launch.ranks;
  request.variables = read(launch.environment);
  request.mpi_available = launch.mpi_size > 0;
  request.mpi_size = [&] {
    if (started != nullptr) *started = true;
    return launch.mpi_size;
  };
  try {
    return choose_mpi(request) ? "mpi" : "threads";
  } catch (const ConfigError& e) {
    return e.what();
  }
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

constexpr auto kAuto = LauncherChoice::kAuto;
constexpr auto kMpi = LauncherChoice::kMpi;
constexpr auto kThreads = LauncherChoice::kThreads;

TEST(LaunchChoice, AutoWithoutALauncherIsThreadsAndDoesNotStartMpi) {
  bool started = false;
  EXPECT_EQ(outcome({kAuto, 8, {}, 1}, &started), "threads");
  EXPECT_FALSE(started);
  EXPECT_EQ(outcome({kAuto, 8, {}, 0}), "threads");
}

TEST(LaunchChoice, AutoUnderALauncherIsMpi) {
  EXPECT_EQ(outcome({kAuto, 0, {{"OMPI_COMM_WORLD_SIZE", "4"}}, 4}), "mpi");
  EXPECT_EQ(outcome({kAuto, 4, {{"PMI_SIZE", "4"}}, 4}), "mpi");
  EXPECT_EQ(outcome({kAuto, 0, {{"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_NTASKS", "8"}}, 3}), "mpi");
  EXPECT_EQ(outcome({kAuto, 0, {{"OMPI_COMM_WORLD_SIZE", "1"}}, 1}), "mpi");
  // mpirun inside a Slurm job: its own variables count, not those of the allocation or of its daemons' step.
  EXPECT_EQ(outcome({kAuto,
                     0,
                     {{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}},
                     2}),
            "mpi");
}

TEST(LaunchChoice, DisagreementIsRefusedNamingVariablesAndNumbers) {
  for (const LauncherChoice choice : {kAuto, kMpi}) {
    expect_parts(outcome({choice, 0, {{"OMPI_COMM_WORLD_SIZE", "4"}}, 1}),
                 {"OMPI_COMM_WORLD_SIZE=4", "one of 1 process", "mpirun", "--launcher threads"});
    expect_parts(outcome({choice, 0, {{"PMI_SIZE", "4"}}, 2}), {"PMI_SIZE=4", "one of 2 processes"});
    expect_parts(outcome({choice, 0, {{"SLURM_NTASKS", "16"}}, 1}), {"SLURM_NTASKS=16", "one of 1", "srun"});
    expect_parts(outcome({choice, 0, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMI_SIZE", "2"}}, 4}),
                 {"OMPI_COMM_WORLD_SIZE=4 and PMI_SIZE=2", "one of 4"});
  }
}

TEST(LaunchChoice, MpiWithAnotherNumberOfRanksIsRefusedNamingBoth) {
  expect_parts(outcome({kMpi, 4, {}, 1}), {"--ranks 4", "MPI's world has 1 rank", "mpirun -n 4",
                                           "no variables of mpirun or srun are set"});
  expect_parts(outcome({kMpi, 2, {{"OMPI_COMM_WORLD_SIZE", "3"}}, 3}),
               {"--ranks 2", "MPI's world has 3 ranks", "OMPI_COMM_WORLD_SIZE=3"});
  expect_parts(outcome({kAuto, 2, {{"OMPI_COMM_WORLD_SIZE", "8"}}, 8}), {"--ranks 2", "has 8 ranks"});
  EXPECT_EQ(outcome({kMpi, 3, {}, 3}), "mpi");
  EXPECT_EQ(outcome({kMpi, 0, {}, 1}), "mpi");
}

TEST(LaunchChoice, WithoutMpiTheFixIsNamed) {
  expect_parts(outcome({kMpi, 0, {}, 0}), {"--launcher mpi", "no MPI", "libopenmpi-dev"});
  expect_parts(outcome({kAuto, 0, {{"PMI_SIZE", "4"}}, 0}), {"PMI_SIZE=4", "no MPI", "libopenmpi-dev"});
  EXPECT_EQ(outcome({kAuto, 0, {{"OMPI_COMM_WORLD_SIZE", "1"}}, 0}), "threads");
}

TEST(LaunchChoice, ThreadsIsTheUsersWord) {
  EXPECT_EQ(outcome({kThreads, 4, {{"SLURM_NTASKS", "4"}}, 0}), "threads");
  EXPECT_EQ(outcome({kThreads, 4, {{"OMPI_COMM_WORLD_SIZE", "4"}}, 4}), "threads");
}

TEST(LaunchChoice, OneSlurmTaskAndWhatIsNoNumberSayNothing) {
  EXPECT_TRUE(read({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "1"}}).empty());
  EXPECT_TRUE(read({{"OMPI_COMM_WORLD_SIZE", ""}, {"PMI_SIZE", "4x"}, {"SLURM_NTASKS", "-3"}}).empty());
  EXPECT_EQ(outcome({kAuto, 8, {{"SLURM_STEP_NUM_TASKS", "1"}}, 1}), "threads");
}

}  // namespace
}  // namespace weft
