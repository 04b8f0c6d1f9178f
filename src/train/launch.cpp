#include "train/launch.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "comm/local/launcher.hpp"
#include "comm/mpi/launch_choice.hpp"
#include "comm/mpi/mpi_launcher.hpp"

namespace weft {
namespace {

// The first of these variables that holds a number; 0: none does.
int number_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && std::atoi(value) > 0) return std::atoi(value);
  }
  return 0;
}

// What launchers call the number of their processes on this machine, and a process's own among them.
int processes_on_machine() {
  return number_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"});
}
int process_on_machine() {
  return number_of({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"});
}

}  // namespace

Launch::Launch(ParallelConfig& parallel) {
  processes_ =
      choose_mpi({.choice = parallel.launcher,
                  .ranks = parallel.ranks,
                  .variables = launcher_variables([](const char* name) { return std::getenv(name); }),
                  .mpi_available = mpi_available(),
                  .mpi_size = [] { return mpi_world().size; }});
  if (processes_) {
    ranks_ = mpi_world().size;
    rank_ = mpi_world().rank;
    parallel.ranks = ranks_;
    on_machine_ = std::clamp(processes_on_machine(), 1, ranks_);
    local_rank_ = process_on_machine();
  } else {
    ranks_ = on_machine_ = static_cast<int>(world_size(parallel));
  }
}

void Launch::run(const Options& options, const std::function<void(Communicator& world)>& body) const {
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(options.timeout_seconds * 1000));
  if (processes_) {
    run_mpi_ranks({.timeout = timeout, .where = options.where}, body);
  } else {
    run_local_ranks({.ranks = ranks_, .timeout = timeout, .grace = std::chrono::seconds(4)}, body);
  }
}

}  // namespace weft
