// That the layouts' tests can fail: a sample of wrong collectives, each of which must be seen. All of them:
// tests/mutation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "mutation_kill.hpp"

namespace weft::testing {
namespace {

// The decorator itself must change nothing.
TEST(Mutation, WithoutOneTheRunIsTheSame) {
  for (const LayoutCase& layout : kill_rows()) {
    std::atomic<bool> happened = false;
    SiteLog log;
    std::string what;
    EXPECT_TRUE(same_bits(run_layout(layout, 1, mutated(layout, nullptr, &log, &happened)),
                          run_layout(layout, 1), &what))
        << layout.name() << ": " << what;
    EXPECT_GT(log.sites().size(), 5U);
  }
}

TEST(Mutation, SampledOnesAreKilled) {
  const KillCount count = kill(kill_rows(), 17);
  EXPECT_GE(count.mutants, 15);
  EXPECT_TRUE(count.survivors.empty()) << fmt::format("{}", fmt::join(count.survivors, "\n"));
  fmt::print("{} mutants, {} killed in {} runs\n", count.mutants, count.killed, count.runs);
}

}  // namespace
}  // namespace weft::testing
