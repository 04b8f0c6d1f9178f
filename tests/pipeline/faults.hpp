// What any program must keep, checked action by action.
#pragma once

#include <string>
#include <vector>

#include "pipeline/schedules.hpp"

namespace weft::test {

// What is wrong with programs for this shape, whatever the times: every action exactly once and on its rank,
// F before B before W, W in microbatch order, data made before it is sent and asked for before it is read.
std::vector<std::string> faults_of(const PipelineShape& shape, const std::vector<Program>& programs);

}  // namespace weft::test
