// Memory of this machine and process.
#pragma once

#include <cstddef>

namespace weft {

// Bytes that this process can still come to hold: what the machine has free (and could free: caches, swap),
// as far as the limits of its control group and of RLIMIT_AS go. The largest number where nothing is known.
std::size_t available_memory();

}  // namespace weft
