// Communicator of the `mpi` backend.
#pragma once

#include <memory>

#include "comm/mpi/engine.hpp"

namespace weft::mpi {

// This process's handle to the group, which has at least two ranks.
std::unique_ptr<Communicator> mpi_communicator(std::shared_ptr<Engine> engine,
                                               std::shared_ptr<const Group> group);

}  // namespace weft::mpi
