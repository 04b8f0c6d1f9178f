// The MPI world that all tests of this program share: MPI starts once a process.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.hpp"

namespace weft::test {

// Calls body with the world and a lane of its own. All ranks run the same tests in the same order.
void on_mpi(const std::function<void(Communicator& world, Lane& lane)>& body);

// A path that all ranks of this run know, and no other run.
const std::string& shared_path();

}  // namespace weft::test
