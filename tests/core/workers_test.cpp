#include "core/workers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>

namespace weft {
namespace {

TEST(Workers, CoverTheRangeOnceInPiecesThatDoNotDependOnThreads) {
  for (const std::int64_t n : {0, 1, 7, 64, 1000}) {
    for (const std::int64_t grain : {1, 3, 64, 5000}) {
      std::set<std::pair<std::int64_t, std::int64_t>> expected;
      for (std::int64_t at = 0; at < n; at += grain) expected.emplace(at, std::min(n, at + grain));
      for (const int threads : {1, 2, 5}) {
        Workers workers(threads);
        EXPECT_EQ(workers.threads(), threads);
        std::mutex mutex;
        std::multiset<std::pair<std::int64_t, std::int64_t>> pieces;
        workers.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
          const std::lock_guard lock(mutex);
          pieces.emplace(begin, end);
        });
        EXPECT_EQ(pieces.size(), expected.size());
        EXPECT_TRUE(std::equal(pieces.begin(), pieces.end(), expected.begin(), expected.end()))
            << n << " by " << grain << " on " << threads;
      }
    }
  }
}

TEST(Workers, TheFirstExceptionComesBackAndTheyGoOn) {
  Workers workers(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(workers.parallel_for(100, 1,
                                      [](std::int64_t begin, std::int64_t) {
                                        if (begin == 37) throw std::runtime_error("37");
                                      }),
                 std::runtime_error);
    std::atomic<int> count{0};
    workers.parallel_for(100, 1, [&](std::int64_t, std::int64_t) { ++count; });
    EXPECT_EQ(count, 100);
  }
}

}  // namespace
}  // namespace weft
