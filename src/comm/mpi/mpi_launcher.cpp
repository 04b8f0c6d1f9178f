#include "comm/mpi/mpi_launcher.hpp"

#include <mpi.h>

#include <string_view>

#include "comm/mpi/engine.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace weft {
namespace {

// "rank 0: " before the first problem, as thread ranks say it.
[[noreturn]] void rethrow_named() {
  try {
    throw;
  } catch (const ConfigError& e) {
    std::vector<std::string> problems = e.problems;
    problems.front() = "rank 0: " + problems.front();
    throw ConfigError(std::move(problems));
  } catch (const std::exception& e) {
    throw Error(fmt::format("rank 0: {}", e.what()));
  }
}

}  // namespace

bool mpi_available() {
  return true;
}

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string_view first(text, static_cast<std::size_t>(length));
  first = first.substr(0, first.find_first_of(",\n"));
  std::string name;
  for (const char c : first) {  // "MPICH Version:      4.0.2"
    const bool blank = c == ' ' || c == '\t';
    if (!blank) name += c;
    if (blank && !name.empty() && name.back() != ' ') name += ' ';
  }
  return name;
}

MpiWorld mpi_world() {
  int started = 0, ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) fail("MPI is finished: one run a process");
  MPI_Initialized(&started);
  if (started == 0) {
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    if (provided < MPI_THREAD_SERIALIZED) {
      config_fail(
          "{} was built without threads (MPI_THREAD_SERIALIZED is needed): build weft with another MPI",
          mpi_library());
    }
  }
  MpiWorld world;
  mpi::check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi::check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &world.rank), "MPI_Comm_rank");
  mpi::check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &world.size), "MPI_Comm_size");
  return world;
}

void leave_mpi() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started != 0 && ended == 0) MPI_Finalize();
}

void run_mpi_ranks(const MpiOptions& options, const std::function<void(Communicator& world)>& body) {
  const MpiWorld world = mpi_world();
  if (world.size == 1) {
    try {
      const std::unique_ptr<Communicator> alone = self_communicator("world");
      body(*alone);
    } catch (...) {
      MPI_Finalize();
      rethrow_named();
    }
    MPI_Finalize();
    return;
  }
  auto engine = std::make_shared<mpi::Engine>(options, world);
  int status = 1;
  std::vector<std::string> problems;
  bool finished = false;
  try {
    body(*mpi::mpi_communicator(engine, engine->world()));
    finished = engine->finish();
  } catch (const Aborted&) {  // another rank's failure, or an operation that this one has cancelled
  } catch (const ConfigError& e) {
    status = 2;
    problems = e.problems;
  } catch (const std::exception& e) {
    problems = {e.what()};
  } catch (...) {
    problems = {"an exception of unknown type"};
  }
  if (!finished) engine->end(status, std::move(problems));
  engine.reset();
  mpi::check_mpi(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace weft
