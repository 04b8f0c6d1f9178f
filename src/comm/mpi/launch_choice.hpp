// Threads or processes: what the user asked for, what the launcher's environment says, and what MPI says must
// agree, so that a wrong launch never becomes n separate runs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace weft {

enum class LauncherChoice { kAuto, kThreads, kMpi };

// One variable by which a launcher tells its processes how many they are.
struct LauncherVariable {
  std::string name;
  std::int64_t size;
};

// The variables of the nearest launcher: mpirun's and mpiexec's, else those of a Slurm step, else those of a
// Slurm allocation. What Slurm says of a single process says nothing: every interactive shell is one.
// `environment` returns a variable's value, or nullptr; values that are no positive number are skipped.
std::vector<LauncherVariable> launcher_variables(
    const std::function<const char*(const char* name)>& environment);

struct LaunchRequest {
  LauncherChoice choice = LauncherChoice::kAuto;  // --launcher
  std::int64_t ranks = 0;                         // --ranks; 0: not given
  std::vector<LauncherVariable> variables;
  bool mpi_available = false;
  std::function<int()> mpi_size;  // MPI's world size; starts MPI, so called only where it matters
};

// True: ranks are processes under MPI. False: threads of this process.
//   auto     threads without launcher variables; MPI when they and MPI's size agree
//   mpi      MPI, whose size must equal --ranks and the variables
//   threads  threads, whatever the variables say
// Throws ConfigError naming variables, numbers and the fix.
bool choose_mpi(const LaunchRequest& request);

}  // namespace weft
