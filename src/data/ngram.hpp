// What counting alone can predict: baselines that a trained model has to beat.
#pragma once

#include <cstdint>
#include <span>

namespace weft {

// Mean negative log-likelihood per token, in nats, of validation tokens 1 .. n-1 given the training tokens.
struct NgramScores {
  double unigram = 0;  // P(w) = (c(w) + 1) / (N + V)
  double bigram =
      0;  // P(w | v) = weight c(v w) / c(v) + (1 - weight) P(w); P(w) alone where v was never seen
  double weight = 0;  // the best of 0.01 .. 0.99 on the last tenth of the training tokens, given the rest
};

// Ids must lie in [0, vocabulary). Both texts need at least two tokens (ConfigError). Memory: 8 bytes a
// training token.
NgramScores ngram_scores(std::span<const std::int32_t> training, std::span<const std::int32_t> validation,
                         std::int64_t vocabulary);

}  // namespace weft
