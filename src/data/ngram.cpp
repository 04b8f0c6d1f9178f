#include "data/ngram.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/check.hpp"

namespace weft {
namespace {

// Counts of tokens and of adjacent pairs.
class Counts {
 public:
  Counts(std::span<const std::int32_t> tokens, std::int64_t vocabulary)
      : total_(std::ssize(tokens)),
        singles_(static_cast<std::size_t>(vocabulary)),
        contexts_(static_cast<std::size_t>(vocabulary)) {
    for (const std::int32_t w : tokens) ++singles_[static_cast<std::size_t>(w)];
    std::vector<std::uint64_t> pairs;
    pairs.reserve(tokens.size());
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      pairs.push_back(key(tokens[i - 1], tokens[i]));
      ++contexts_[static_cast<std::size_t>(tokens[i - 1])];
    }
    std::sort(pairs.begin(), pairs.end());
    for (std::size_t i = 0; i < pairs.size();) {
      std::size_t end = i;
      while (end < pairs.size() && pairs[end] == pairs[i]) ++end;
      keys_.push_back(pairs[i]);
      pair_counts_.push_back(static_cast<std::int64_t>(end - i));
      i = end;
    }
  }

  double unigram(std::int32_t w) const {
    return (static_cast<double>(singles_[static_cast<std::size_t>(w)]) + 1) /
           static_cast<double>(total_ + std::ssize(singles_));
  }
  bool seen(std::int32_t v) const { return contexts_[static_cast<std::size_t>(v)] > 0; }
  // c(v w) / c(v); v must have been seen.
  double conditional(std::int32_t v, std::int32_t w) const {
    const auto at = std::lower_bound(keys_.begin(), keys_.end(), key(v, w));
    if (at == keys_.end() || *at != key(v, w)) return 0;
    return static_cast<double>(pair_counts_[static_cast<std::size_t>(at - keys_.begin())]) /
           static_cast<double>(contexts_[static_cast<std::size_t>(v)]);
  }

 private:
  static std::uint64_t key(std::int32_t v, std::int32_t w) {
    return (static_cast<std::uint64_t>(v) << 32) | static_cast<std::uint64_t>(w);
  }
  std::int64_t total_;
  std::vector<std::int64_t> singles_, contexts_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::int64_t> pair_counts_;
};

// The two parts of each prediction, so that many weights can be tried on one pass of look-ups.
struct Prediction {
  double conditional, unigram;  // conditional < 0: the context was never seen
};

std::vector<Prediction> predict(const Counts& counts, std::span<const std::int32_t> tokens) {
  std::vector<Prediction> predictions;
  predictions.reserve(tokens.size());
  for (std::size_t i = 1; i < tokens.size(); ++i)
    predictions.push_back({counts.seen(tokens[i - 1]) ? counts.conditional(tokens[i - 1], tokens[i]) : -1,
                           counts.unigram(tokens[i])});
  return predictions;
}

double mean_loss(std::span<const Prediction> predictions, double weight) {
  double sum = 0;
  for (const Prediction& p : predictions)
    sum -= std::log(p.conditional < 0 ? p.unigram : weight * p.conditional + (1 - weight) * p.unigram);
  return sum / static_cast<double>(predictions.size());
}

}  // namespace

NgramScores ngram_scores(std::span<const std::int32_t> training, std::span<const std::int32_t> validation,
                         std::int64_t vocabulary) {
  if (training.size() < 2 || validation.size() < 2)
    config_fail("n-gram scores need two tokens of each text; training has {}, validation {}", training.size(),
                validation.size());
  for (const auto tokens : {training, validation})
    for (const std::int32_t id : tokens)
      WEFT_CHECK(id >= 0 && id < vocabulary, "token id {}, vocabulary {}", id, vocabulary);
  NgramScores scores;
  const std::size_t held = std::max<std::size_t>(1, training.size() / 10);
  // The held-out part keeps the token before it as its first context.
  const auto held_out =
      predict(Counts(training.first(training.size() - held), vocabulary), training.last(held + 1));
  double best = std::numeric_limits<double>::infinity();
  for (int percent = 1; percent <= 99; ++percent) {
    const double weight = percent / 100.0;
    const double loss = mean_loss(held_out, weight);
    if (loss >= best) continue;
    best = loss;
    scores.weight = weight;
  }
  const auto predictions = predict(Counts(training, vocabulary), validation);
  scores.unigram = mean_loss(predictions, 0);
  scores.bigram = mean_loss(predictions, scores.weight);
  return scores;
}

}  // namespace weft
