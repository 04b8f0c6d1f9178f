// Blends: samples of several datasets in given shares, in Megatron Core's order (BlendedDataset).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/gpt_dataset.hpp"

namespace weft {

// The words of --data-path: `p1 p2 ...` (no weights) or `w1 p1 w2 p2 ...`.
struct BlendWords {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // as many, positive; or none
};
// ConfigErrors: no word, weights for some datasets only, a weight that is not positive.
BlendWords parse_blend(std::span<const std::string> words);

// Sample i of the blend is sample `sample[i]` of dataset `dataset[i]`.
struct BlendIndex {
  std::vector<std::int16_t> dataset;
  std::vector<std::int64_t> sample;
};
// Each sample goes to the dataset that is furthest behind its share: the first d with the largest
// weight_d max(i, 1) - used_d. weights: any positive numbers.
BlendIndex blend_by_weight(std::span<const double> weights, std::int64_t size);
// All samples of every dataset, mixed evenly by the same rule; a dataset that is used up leaves.
BlendIndex blend_all(std::span<const std::int64_t> sizes);

class BlendedDataset final : public SampleSet {
 public:
  // An Error when the index asks a part for more samples than it has.
  BlendedDataset(std::vector<std::unique_ptr<SampleSet>> parts, BlendIndex index);

  std::int64_t size() const override { return std::ssize(index_.sample); }
  const GptDatasetOptions& options() const override { return parts_.front()->options(); }
  std::string name() const override;
  void sample(std::int64_t number, GptSample& out) const override;
  const BlendIndex& index() const { return index_; }

 private:
  std::vector<std::unique_ptr<SampleSet>> parts_;
  BlendIndex index_;
};

struct BlendedSplits {
  // Null where 0 samples were asked for.
  std::unique_ptr<BlendedDataset> train, validation, test;
};

// Splits every source by documents and blends the parts. samples: needed of train, validation, test; 0: not
// used. With weights each source gives its share of `samples`, rounded up (so a blend may hold a few samples
// more); without, every source gives one epoch, of which at most `samples` (none: all) are used. Errors as
// build_gpt_splits.
BlendedSplits build_blended_splits(std::span<const std::shared_ptr<const TokenSource>> sources,
                                   std::span<const double> weights, const std::string& split,
                                   const std::array<std::optional<std::int64_t>, 3>& samples,
                                   const GptDatasetOptions& options);

}  // namespace weft
