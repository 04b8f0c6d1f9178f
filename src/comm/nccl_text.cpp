#include <cstdlib>
#include <string_view>

#include "comm/nccl/nccl_communicator.hpp"

namespace weft {

bool nccl_ranks_share_gpus() {
  const char* value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::string_view(value) == "1";
}

std::string nccl_error_text(const std::string& who, const std::string& attempt, const std::string& error,
                            const std::string& last) {
  return fmt::format("{}: NCCL cannot {}: {}{}. NCCL_DEBUG=WARN in the environment shows what it met", who,
                     attempt, error, last.empty() ? "" : fmt::format(" (its last error: {})", last));
}

}  // namespace weft
