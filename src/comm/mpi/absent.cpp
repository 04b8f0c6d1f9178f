// A build without MPI.
#include "comm/mpi/mpi_launcher.hpp"

namespace weft {
namespace {

[[noreturn]] void fail_absent() {
  config_fail(
      "this build has no MPI: install libopenmpi-dev and openmpi-bin (or libmpich-dev and mpich) and "
      "configure "
      "the build again");
}

}  // namespace

bool mpi_available() {
  return false;
}
std::string mpi_library() {
  return "";
}
MpiWorld mpi_world() {
  fail_absent();
}
void leave_mpi() {}
void run_mpi_ranks(const MpiOptions&, const std::function<void(Communicator&)>&) {
  fail_absent();
}

}  // namespace weft
