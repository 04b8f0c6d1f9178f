// Every wrong collective that a layout can make must be seen by some row of the layouts' tests.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "train/layout_table.hpp"
#include "train/mutation_kill.hpp"

namespace weft::testing {
namespace {

void expect_all_killed(const std::vector<LayoutCase>& rows) {
  const KillCount count = kill(rows);
  fmt::print("{} rows: {} mutants, {} killed, {} survivors, {} equivalent, {} runs\n", rows.size(),
             count.mutants, count.killed, count.survivors.size(), count.equivalent, count.runs);
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

}  // namespace
}  // namespace weft::testing
