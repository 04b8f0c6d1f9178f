// Steps of the real engine on thread ranks.
#pragma once

#include "observed_communicator.hpp"
#include "overlap.hpp"
#include "train/engine.hpp"

namespace weft::overlap {

// A Llama-like model; its embeddings are a small part of it, as they are of a large one.
ModelConfig small_llama(std::int64_t layers, std::int64_t hidden);

struct EngineRun {
  EngineOptions options;
  std::optional<LinkModel> link;
  bool without_reductions = false, without_gathers = false;
  std::int64_t microbatches = 1;
  int threads = 1;
  int steps = 3;         // timed, after one that touches the memory
  bool forward = false;  // time a forward pass as well
};
// Of rank 0.
struct EngineTimes {
  double step = 0, forward = 0;  // seconds, means of the steps
  double last_reduction = 0;     // the last one of a step starts so long after its begin; the latest step
  Traffic traffic;               // of the latest step
  std::vector<std::vector<int>> buckets;  // by block of the model: buckets that hold its weights, as gathered
};
EngineTimes run_engine(const EngineRun& run);

}  // namespace weft::overlap
