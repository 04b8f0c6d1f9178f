// What the options of context parallelism say.
#pragma once

#include <string>
#include <vector>

#include "model/spec.hpp"
#include "nn/sequence_cut.hpp"
#include "train/config.hpp"

namespace weft {

// How attention of each layer reaches the rest of a sequence; one: of all. Of sound options.
std::vector<ContextMethod> context_methods(const ParallelConfig& parallel);
// What --cp-sequence-order says; auto: contiguous where every layer exchanges heads and so has whole
// sequences.
nn::SequenceOrder sequence_order(const ParallelConfig& parallel);
// Neighbouring ranks that exchange heads under a2a+p2p; 0: no layer uses it.
int head_exchange(const ParallelConfig& parallel);
// What sequence lengths must be a multiple of, or else are filled up to.
std::int64_t sequence_multiple(const ParallelConfig& parallel);

// What is wrong with them for this model and length (0: not known yet).
std::vector<std::string> context_problems(const TrainConfig& config);

}  // namespace weft
