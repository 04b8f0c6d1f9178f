#include "infer/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.hpp"

namespace weft {
namespace {

// [0, 1) with 53 bits.
double uniform53(const Philox& bits) {
  return (static_cast<double>(bits[0] >> 5) * 0x1p26 + static_cast<double>(bits[1] >> 6)) * 0x1p-53;
}

}  // namespace

std::vector<std::string> problems_of(const SamplingOptions& options) {
  std::vector<std::string> problems;
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    problems.push_back(fmt::format(
        "--temperature {}: must be 0 (the most probable token) or a positive number", options.temperature));
  }
  if (options.top_k < 0) {
    problems.push_back(fmt::format("--top-k {}: must be 0 (all tokens) or a positive number", options.top_k));
  }
  if (!(options.top_p >= 0 && options.top_p <= 1)) {
    problems.push_back(fmt::format("--top-p {}: must be between 0 and 1 (all tokens)", options.top_p));
  }
  return problems;
}

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  if (std::vector<std::string> problems = problems_of(options); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  key_ = RandomKey{options.seed}.with("sampling");
}

void Sampler::weigh(std::span<const double> logits) {
  const auto n = logits.size();
  // The first of the largest. Comparisons with NaN are false, so it is looked for by name.
  std::size_t best = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (std::isnan(logits[i])) fail("the logit of token {} is not a number", i);
    if (logits[i] > logits[best]) best = i;
  }
  if (n == 0 || std::isinf(logits[best]))
    fail("no token can be chosen: the largest logit is {}", n == 0 ? 0.0 : logits[best]);

  weights_.assign(n, 0);
  if (options_.temperature == 0 || options_.top_k == 1 || options_.top_p == 0) {
    weights_[best] = total_ = 1;
    return;
  }
  for (std::size_t i = 0; i < n; ++i)
    weights_[i] = std::exp((logits[i] - logits[best]) / options_.temperature);

  const auto k = static_cast<std::size_t>(options_.top_k);
  const bool cut_k = k > 0 && k < n;
  if (cut_k || options_.top_p < 1) {
    // By logit, not by weight: small temperatures make many weights zero, and equal.
    const auto before = [&](std::int32_t a, std::int32_t b) {
      const double x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    };
    order_.resize(n);
    std::iota(order_.begin(), order_.end(), 0);
    if (cut_k) {
      std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(k) - 1, order_.end(),
                       before);
      for (std::size_t i = k; i < n; ++i) weights_[static_cast<std::size_t>(order_[i])] = 0;
      order_.resize(k);
    }
    if (options_.top_p < 1) {
      double left = 0;
      for (const std::int32_t i : order_) left += weights_[static_cast<std::size_t>(i)];
      const double enough = options_.top_p * left;
      // A heap gives the largest ones without sorting the rest, which may be a whole vocabulary.
      const auto after = [&](std::int32_t a, std::int32_t b) { return before(b, a); };
      std::make_heap(order_.begin(), order_.end(), after);
      auto end = order_.end();
      for (double held = 0; held < enough && end != order_.begin();) {
        std::pop_heap(order_.begin(), end, after);
        held += weights_[static_cast<std::size_t>(*--end)];
      }
      for (auto it = order_.begin(); it != end; ++it) weights_[static_cast<std::size_t>(*it)] = 0;
    }
  }
  total_ = std::accumulate(weights_.begin(), weights_.end(), 0.0);
}

std::int32_t Sampler::next(std::span<const double> logits, std::uint64_t sequence, std::int64_t position) {
  weigh(logits);
  const double target = uniform53(philox(key_, static_cast<std::uint64_t>(position), sequence)) * total_;
  // In the order of ids, not of probabilities: near ties then do not move the others' ranges.
  double sum = 0;
  std::int32_t last = -1;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    last = static_cast<std::int32_t>(i);
    sum += weights_[i];
    if (sum > target) break;
  }
  return last;
}

std::vector<double> Sampler::probabilities(std::span<const double> logits) {
  weigh(logits);
  std::vector<double> p = weights_;
  for (double& x : p) x /= total_;
  return p;
}

}  // namespace weft
