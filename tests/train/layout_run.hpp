// One training run of a tiny model on any layout, and everything about it that must not depend on the layout.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "support/rank.hpp"
#include "train/engine.hpp"

namespace weft::testing {

struct LayoutCase {
  std::string model =
      "llama";  // llama: grouped queries, rotary, untied. gpt2: tied, learned positions, dropout
  int tp = 1, pp = 1, dp = 1;
  ParallelConfig::Schedule schedule = ParallelConfig::Schedule::k1F1B;
  int chunks = 1;
  bool sequence_parallel = false;
  bool distributed = false;
  bool overlap = true;  // of gradient reduction, weight gathering and messages
  int accumulation = 1;
  bool ragged = false;            // masks differ from sample to sample; one sample has no target at all
  std::int64_t global_batch = 0;  // 0: accumulation · lcm-friendly number that every dp divides
  std::int64_t bucket = 0;
  DType dtype = DType::kF32;
  bool tied = false;  // in place of the model's own choice, with tied_given
  bool tied_given = false;
  std::int64_t layers = 4;
  std::int64_t groups = 12;  // llama: key/value groups of 12 heads
  std::string stages;        // a pipeline layout string
  int tensor_parallel_chunks = 1;
  RecomputeSpec recompute;

  int ranks() const { return tp * pp * dp; }
  std::string name() const;
};

struct LayoutResult {
  std::vector<double> losses, norms;
  Gradients gradients;             // of the first batch, over its target tokens
  std::vector<Gradients> weights;  // at the start, and after each step
};

// `steps` SGD steps (no momentum) from the seed's weights. Runs on thread ranks.
LayoutResult run_layout(const LayoutCase& layout, int steps = 3);

// The worst ratio of a quantity to its tolerance; above 1 is a failure. `what`
// names it.
double worst_difference(const LayoutResult& a, const LayoutResult& b, double tolerance, std::string* what);
// Whether every number has the same bits.
bool same_bits(const LayoutResult& a, const LayoutResult& b, std::string* what);

}  // namespace weft::testing
