// Communicator of the `local` backend.
#pragma once

#include <memory>

#include "comm/communicator.hpp"
#include "comm/local/group.hpp"

namespace weft::local {

// This rank's handle to the group; belongs to the rank's thread.
std::unique_ptr<Communicator> local_communicator(std::shared_ptr<Group> group, int rank);

}  // namespace weft::local
