// Drawings of a simulated pipeline.
#pragma once

#include <string>
#include <vector>

#include "pipeline/simulate.hpp"

namespace weft {

// One line per rank. Every column is one time: that of the shortest action, or more when the line would be
// longer than `columns` cells. F2 is the forward of microbatch 2 on chunk 0; chunks from 1 on add a letter
// (F2b); "." is idle, "-" the rest of a longer action.
std::string draw_text(const std::vector<Program>& programs, const SimulationResult& result,
                      std::size_t columns = 120);

// A page of its own: nothing is loaded from elsewhere; light and dark as the viewer prefers.
std::string draw_svg(const std::vector<Program>& programs, const SimulationResult& result,
                     const std::string& title);

}  // namespace weft
