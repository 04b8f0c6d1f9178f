#include "comm/mpi/launch_choice.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/check.hpp"

namespace weft {
namespace {

constexpr const char* kInstall =
    "install libopenmpi-dev and openmpi-bin (or libmpich-dev and mpich) and configure the build again";

std::int64_t number(const char* text) {
  std::int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, value);
  return error == std::errc() && stopped == end ? value : 0;
}

// "OMPI_COMM_WORLD_SIZE=4 and PMI_SIZE=4"
std::string list(const std::vector<LauncherVariable>& variables) {
  std::string text;
  for (const LauncherVariable& v : variables)
    text += fmt::format("{}{}={}", text.empty() ? "" : " and ", v.name, v.size);
  return text;
}

bool all_equal(const std::vector<LauncherVariable>& variables, std::int64_t size) {
  return std::all_of(variables.begin(), variables.end(),
                     [size](const LauncherVariable& v) { return v.size == size; });
}

[[noreturn]] void fail_disagreement(const std::vector<LauncherVariable>& variables, int size) {
  const bool slurm = variables[0].name.rfind("SLURM_", 0) == 0;
  const char* fix = slurm ? "start with srun and an --mpi type that this build's MPI knows (srun "
                            "--mpi=list), or with mpirun of "
                            "the MPI that weft was built with (weft doctor names it)"
                          : "start with mpirun of the MPI that weft was built with (weft doctor names it)";
  config_fail(
      "--launcher: the environment says {}, but MPI says that this is one of {} process{}: launcher and "
      "library do "
      "not belong together, and each process would be a run of its own; {}; --launcher threads runs all "
      "ranks in this one process",
      list(variables), size, size == 1 ? "" : "es", fix);
}

}  // namespace

std::vector<LauncherVariable> launcher_variables(
    const std::function<const char*(const char* name)>& environment) {
  const auto read = [&](std::initializer_list<const char*> names, std::int64_t smallest) {
    std::vector<LauncherVariable> found;
    for (const char* name : names) {
      const char* text = environment(name);
      const std::int64_t size = text == nullptr ? 0 : number(text);
      if (size >= smallest) found.push_back({name, size});
    }
    return found;
  };
  for (const auto& found : {read({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}, 1),
                            read({"SLURM_STEP_NUM_TASKS"}, 2), read({"SLURM_NTASKS"}, 2)}) {
    if (!found.empty()) return found;
  }
  return {};
}

bool choose_mpi(const LaunchRequest& request) {
  const std::vector<LauncherVariable>& variables = request.variables;
  if (request.choice == LauncherChoice::kThreads) return false;
  const bool asked = request.choice == LauncherChoice::kMpi;
  if (!asked && variables.empty()) return false;
  if (!request.mpi_available) {
    if (asked) config_fail("--launcher mpi: this build has no MPI; {}", kInstall);
    if (all_equal(variables, 1)) return false;
    config_fail(
        "--launcher auto: the environment says {}, but this build has no MPI, and each process would be a "
        "run of its "
        "own; {}, or start one process: its ranks are threads",
        list(variables), kInstall);
  }
  const int size = request.mpi_size();
  if (!all_equal(variables, size)) fail_disagreement(variables, size);
  if (request.ranks > 0 && request.ranks != size) {
    config_fail(
        "--ranks {}: MPI's world has {} rank{} (by MPI_Comm_size; {}); start {} processes (mpirun -n {}), or "
        "leave "
        "--ranks out",
        request.ranks, size, size == 1 ? "" : "s",
        variables.empty() ? "no variables of mpirun or srun are set" : "the launcher says " + list(variables),
        request.ranks, request.ranks);
  }
  return true;
}

}  // namespace weft
