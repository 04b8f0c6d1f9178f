// Which token comes next: temperature, top-k, top-p, or the most probable one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/rng.hpp"

namespace weft {

struct SamplingOptions {
  double temperature = 1;  // logits are divided by it; 0: the largest logit, the first of equals
  std::int64_t top_k = 0;  // only the k largest logits; 0 or more than there are: all
  double top_p = 1;        // only the fewest most probable tokens that hold this much of what top_k has left
  std::uint64_t seed = 1234;
};

// Everything wrong with the values, by the names of the command line; empty: fine.
std::vector<std::string> problems_of(const SamplingOptions& options);

// Draws are a pure function of (seed, sequence, position) and the logits: neither batch nor layout nor what
// was drawn before has a part in them.
class Sampler {
 public:
  // ConfigError with every problem.
  explicit Sampler(const SamplingOptions& options);

  // An index into `logits` (the unpadded vocabulary). `sequence` numbers the prompt, `position` is where the
  // token will stand. Error when logits hold NaN or no number above minus infinity. Of equal logits the first
  // ones are kept.
  std::int32_t next(std::span<const double> logits, std::uint64_t sequence, std::int64_t position);

  // The probabilities next() draws from, zero for what is left out: [logits.size()]. Greedy: one 1.
  std::vector<double> probabilities(std::span<const double> logits);

 private:
  void weigh(std::span<const double> logits);

  SamplingOptions options_;
  RandomKey key_;
  // Of the latest call: exp((logit − max) / temperature), zero for what is left out; and their sum.
  std::vector<double> weights_;
  std::vector<std::int32_t> order_;
  double total_ = 0;
};

}  // namespace weft
