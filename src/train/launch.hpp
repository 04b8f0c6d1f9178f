// Where the ranks of a run are: threads of this process, or processes that MPI started.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.hpp"
#include "train/config.hpp"

namespace weft {

class Launch {
 public:
  // Decides by --launcher, --ranks, the launcher's variables and MPI (see launch_choice.hpp). Under MPI it
  // sets parallel.ranks to the number of processes. ConfigError where they contradict each other.
  explicit Launch(ParallelConfig& parallel);

  bool processes() const { return processes_; }
  // This process holds world rank 0: it reports, locks and writes what there is one of.
  bool first() const { return rank_ == 0; }
  // Of all ranks, those on this machine, as far as the launcher says.
  int ranks_on_machine() const { return on_machine_; }
  // The number of a rank of this process among those on this machine.
  int local_rank(int world_rank) const { return processes_ ? local_rank_ : world_rank; }

  struct Options {
    double timeout_seconds = 600;
    std::function<std::string()> where;  // "step 12", for the report of a failure
  };
  // Runs body(world) for every rank that this process holds. A failure of any rank ends all of them; under
  // MPI the process then ends in here, the rank that saw it first having printed why.
  void run(const Options& options, const std::function<void(Communicator& world)>& body) const;

 private:
  bool processes_ = false;
  int ranks_ = 1, rank_ = 0, on_machine_ = 1, local_rank_ = 0;
};

}  // namespace weft
