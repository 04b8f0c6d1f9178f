// The long tests of layouts. Every wrong collective that a layout can make must be seen by some row of the
// layouts' tests; and random layouts equal one rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "train/layout_table.hpp"
#include "train/mutation_kill.hpp"

namespace weft::testing {
namespace {

void expect_all_killed(const std::vector<LayoutCase>& rows) {
  const KillCount count = kill(rows);
  fmt::print("{} rows: {} mutants, {} killed ({} by an error), {} survivors, {} equivalent, {} runs\n",
             rows.size(), count.mutants, count.killed, count.stopped, count.survivors.size(),
             count.equivalent, count.runs);
  EXPECT_EQ(count.killed, count.mutants) << fmt::format("{}", fmt::join(count.survivors, "\n"));
}

TEST(EveryMutant, IsKilledByAFewRows) {
  expect_all_killed(kill_rows());
}

TEST(EveryMutant, IsKilledByTheTable) {
  std::vector<LayoutCase> rows;
  for (const TableRow& row : covering_rows()) rows.push_back(case_of(row));
  expect_all_killed(rows);
}

// More combinations than the table's, as they come, in fp64.
class RandomLayouts : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(RandomLayouts, EqualOneRank) {
  for (const TableRow& row : random_rows(GetParam(), 50)) {
    LayoutCase layout = case_of(row);
    layout.dtype = DType::kF64;
    std::string what;
    EXPECT_LE(worst_difference(run_layout(layout, 2), reference_of(layout, 2), 1e-11, &what), 1.0)
        << layout.name() << ": " << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Seed, RandomLayouts, ::testing::Range(0U, 6U));

}  // namespace
}  // namespace weft::testing
