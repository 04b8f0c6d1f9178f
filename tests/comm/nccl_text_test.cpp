#include <gtest/gtest.h>

#include "comm/nccl/nccl_communicator.hpp"

namespace weft {
namespace {

TEST(NcclText, NamesRankGroupAndWhatNcclSaidLast) {
  EXPECT_EQ(
      nccl_error_text("group 'dp', rank 1 of 4", "all_reduce", "unhandled cuda error", "Failed to open"),
      "group 'dp', rank 1 of 4: NCCL cannot all_reduce: unhandled cuda error (its last error: Failed to "
      "open). NCCL_DEBUG=WARN in the environment shows what it met");
  EXPECT_EQ(
      nccl_error_text("group 'tp', rank 0 of 2", "join", "invalid usage", ""),
      "group 'tp', rank 0 of 2: NCCL cannot join: invalid usage. NCCL_DEBUG=WARN in the environment shows "
      "what it met");
}

}  // namespace
}  // namespace weft
