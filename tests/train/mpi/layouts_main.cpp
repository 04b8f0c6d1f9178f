// Rows of the layout table on processes of one world, held against the same rows on thread ranks: every
// number has the same bits. Started by mpirun; at most as many rows as its argument says.
#include <cstdio>
#include <cstdlib>

#include "comm/mpi/mpi_launcher.hpp"
#include "train/layout_table.hpp"

namespace weft::testing {
namespace {

void compare_rows(Communicator& world, int most) {
  int rows = 0;
  for (const TableRow& row : covering_rows()) {
    const LayoutCase layout = case_of(row);
    if (layout.ranks() > world.size() || layout.ranks() < 2 || rows == most) continue;
    ++rows;
    const bool member = world.rank() < layout.ranks();
    const auto group = world.split(member ? 0 : -1, world.rank(), "layout");
    LayoutResult processes;
    if (member) processes = run_layout_rank(layout, *group);
    if (world.rank() == 0) {
      std::string what;
      if (!same_bits(processes, run_layout(layout), &what)) fail("{}: {} differ", layout.name(), what);
      fmt::print("same bits: {}\n", layout.name());
      std::fflush(stdout);
    }
    TestRank rank(1 << 12);
    world.barrier(rank.lane());
  }
  WEFT_CHECK(rows == most, "{} rows of at most {} ranks, {} asked for", rows, world.size(), most);
}

}  // namespace
}  // namespace weft::testing

int main(int, char** argv) {
  const int most = std::atoi(argv[1]);
  weft::run_mpi_ranks({.timeout = std::chrono::seconds(60)},
                      [&](weft::Communicator& world) { weft::testing::compare_rows(world, most); });
}
