#include "data/blend.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/check.hpp"

namespace weft {
namespace {

// Datasets are built a little longer than their share: the order of the blend may lead one past it.
constexpr double kSurplus = 0.005;

std::optional<double> number(const std::string& word) {
  double value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  return error == std::errc{} && stop == end ? std::optional(value) : std::nullopt;
}

std::vector<double> normalised(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> shares(weights.begin(), weights.end());
  for (double& share : shares) share /= sum;
  return shares;
}

// The dataset furthest behind its share at sample i; those without `left` do not count.
std::size_t furthest_behind(std::span<const double> shares, std::span<const std::int64_t> used,
                            std::int64_t i, std::span<const std::int64_t> left) {
  const double position = std::max(static_cast<double>(i), 1.0);
  std::size_t best = 0;
  double most = -std::numeric_limits<double>::infinity();
  for (std::size_t d = 0; d < shares.size(); ++d) {
    if (!left.empty() && left[d] == used[d]) continue;
    const double behind = shares[d] * position - static_cast<double>(used[d]);
    if (behind <= most) continue;
    most = behind;
    best = d;
  }
  return best;
}

BlendIndex blend(std::span<const double> shares, std::int64_t size, std::span<const std::int64_t> left) {
  if (shares.size() > static_cast<std::size_t>(std::numeric_limits<std::int16_t>::max()))
    config_fail("--data-path: {} datasets; at most {} can be blended", shares.size(),
                std::numeric_limits<std::int16_t>::max());
  BlendIndex index;
  index.dataset.reserve(static_cast<std::size_t>(size));
  index.sample.reserve(static_cast<std::size_t>(size));
  std::vector<std::int64_t> used(shares.size(), 0);
  for (std::int64_t i = 0; i < size; ++i) {
    const std::size_t d = furthest_behind(shares, used, i, left);
    index.dataset.push_back(static_cast<std::int16_t>(d));
    index.sample.push_back(used[d]++);
  }
  return index;
}

std::int64_t rounded_up(double value) {
  return static_cast<std::int64_t>(std::ceil(value));
}

}  // namespace

BlendWords parse_blend(std::span<const std::string> words) {
  if (words.empty()) config_fail("--data-path: no dataset was named");
  BlendWords blend;
  std::size_t numbers = 0;
  if (words.size() % 2 == 0)
    for (std::size_t i = 0; i < words.size(); i += 2) numbers += number(words[i]) ? 1 : 0;
  if (numbers == 0) {
    blend.prefixes.assign(words.begin(), words.end());
    return blend;
  }
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const auto weight = number(words[i]);
    if (!weight)
      config_fail("--data-path: expected a weight before each prefix (w1 p1 w2 p2 ...), found \"{}\"",
                  words[i]);
    if (!(*weight > 0) || !std::isfinite(*weight))
      config_fail("--data-path: weight {} of {}: expected a positive number; leave out what is not used",
                  words[i], words[i + 1]);
    blend.weights.push_back(*weight);
    blend.prefixes.push_back(words[i + 1]);
  }
  return blend;
}

BlendIndex blend_by_weight(std::span<const double> weights, std::int64_t size) {
  return blend(normalised(weights), size, {});
}

BlendIndex blend_all(std::span<const std::int64_t> sizes) {
  const std::int64_t size = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const std::vector<double> weights(sizes.begin(), sizes.end());
  return blend(normalised(weights), size, sizes);
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<SampleSet>> parts, BlendIndex index)
    : parts_(std::move(parts)), index_(std::move(index)) {
  std::vector<std::int64_t> needed(parts_.size(), 0);
  for (std::size_t i = 0; i < index_.sample.size(); ++i) {
    auto& most = needed[static_cast<std::size_t>(index_.dataset[i])];
    most = std::max(most, index_.sample[i] + 1);
  }
  for (std::size_t d = 0; d < parts_.size(); ++d)
    if (needed[d] > parts_[d]->size())
      fail("{}: the blend takes {} samples, the dataset was built for {}", parts_[d]->name(), needed[d],
           parts_[d]->size());
}

std::string BlendedDataset::name() const {
  return fmt::format("blend of {} datasets ({}, ...)", parts_.size(), parts_.front()->name());
}

void BlendedDataset::sample(std::int64_t number, GptSample& out) const {
  WEFT_CHECK(number >= 0 && number < size(), "sample {} of {}", number, size());
  const auto i = static_cast<std::size_t>(number);
  parts_[static_cast<std::size_t>(index_.dataset[i])]->sample(index_.sample[i], out);
}

BlendedSplits build_blended_splits(std::span<const std::shared_ptr<const TokenSource>> sources,
                                   std::span<const double> weights, const std::string& split,
                                   const std::array<std::optional<std::int64_t>, 3>& samples,
                                   const GptDatasetOptions& options) {
  WEFT_CHECK(!sources.empty() && (weights.empty() || weights.size() == sources.size()),
             "{} datasets, {} weights", sources.size(), weights.size());
  const std::vector<double> shares = normalised(weights);
  std::array<std::vector<std::unique_ptr<SampleSet>>, 3> parts;
  std::array<std::int64_t, 3> targets{};
  std::vector<std::string> problems;
  for (std::size_t d = 0; d < sources.size(); ++d) {
    std::array<std::optional<std::int64_t>, 3> wanted;  // one epoch
    for (std::size_t i = 0; i < 3; ++i) {
      if (samples[i] == 0) wanted[i] = 0;
      if (weights.empty() || !samples[i] || *samples[i] == 0) continue;
      const std::int64_t target = rounded_up(static_cast<double>(*samples[i]) * shares[d]);
      targets[i] += target;
      wanted[i] = rounded_up(static_cast<double>(target) * (1 + kSurplus));
    }
    try {
      GptSplits built = build_gpt_splits(sources[d], split, SplitBy::kDocuments, wanted, options);
      parts[0].push_back(std::move(built.train));
      parts[1].push_back(std::move(built.validation));
      parts[2].push_back(std::move(built.test));
    } catch (const ConfigError& error) {
      problems.insert(problems.end(), error.problems.begin(), error.problems.end());
    }
  }
  if (!problems.empty()) throw ConfigError(problems);
  BlendedSplits splits;
  const std::array<std::unique_ptr<BlendedDataset>*, 3> results{&splits.train, &splits.validation,
                                                                &splits.test};
  for (std::size_t i = 0; i < 3; ++i) {
    if (samples[i] == 0) continue;
    BlendIndex index;
    if (!weights.empty() && samples[i]) {
      index = blend_by_weight(shares, targets[i]);
    } else {
      std::vector<std::int64_t> sizes;
      for (const auto& part : parts[i]) sizes.push_back(part->size());
      if (samples[i]) {
        const std::vector<double> by_size(sizes.begin(), sizes.end());
        index = blend_by_weight(
            by_size, std::min(*samples[i], std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})));
      } else {
        index = blend_all(sizes);
      }
    }
    *results[i] = std::make_unique<BlendedDataset>(std::move(parts[i]), std::move(index));
  }
  return splits;
}

}  // namespace weft
