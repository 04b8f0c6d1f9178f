// Which mutants a set of layouts kills.
#pragma once

#include "mutation.hpp"

namespace weft::testing {

struct KillCount {
  int mutants = 0, killed = 0, equivalent = 0, runs = 0;
  int stopped = 0;  // of the killed ones: by an error of the program, not by a number
  std::vector<std::string> survivors;
};

// Runs every `stride`-th mutant of the call sites that the rows pass, on one row after another, cheapest
// first, until one differs from one rank; wrong groups only where there are some.
KillCount kill(const std::vector<LayoutCase>& rows, std::size_t stride = 1);

// A few rows that between them pass most sites.
std::vector<LayoutCase> kill_rows();

}  // namespace weft::testing
