// Which samples a data-parallel rank reads for which microbatch, and their assembly into batches. Everything
// is a function of consumed_samples: resuming is just that number.
#pragma once

#include <cstdint>
#include <vector>

#include "data/gpt_dataset.hpp"

namespace weft {

// Where no sample is: a row that fills a batch which micro batch size x dp does not divide.
inline constexpr std::int64_t kNoSample = -1;
// The label of positions that count nowhere.
inline constexpr std::int32_t kIgnoredLabel = -100;

struct BatchShape {
  std::int64_t global_batch = 1;
  std::int64_t micro_batch = 1;
  std::int64_t dp_size = 1;

  // Microbatches of each rank: global_batch / (micro_batch x dp_size), rounded up.
  std::int64_t microbatches() const {
    return (global_batch + micro_batch * dp_size - 1) / (micro_batch * dp_size);
  }
};

// The global sample numbers of microbatch `microbatch` on rank `dp_rank`: global batches are consecutive,
// microbatch k of all ranks together takes the next micro_batch x dp_size samples, and each rank its slice of
// micro_batch (Megatron's `single` order). Rows past the global batch are kNoSample. Length micro_batch.
std::vector<std::int64_t> microbatch_samples(const BatchShape& shape, std::int64_t consumed_samples,
                                             std::int64_t microbatch, std::int64_t dp_rank);

struct Batch {
  std::int64_t rows = 0;                   // b
  std::int64_t sequence_length = 0;        // s
  std::vector<std::int32_t> tokens;        // [b, s]
  std::vector<std::int32_t> labels;        // [b, s] the target of each position, or kIgnoredLabel
  std::vector<std::int32_t> position_ids;  // [b, s]
  std::vector<std::int64_t> sample_ids;    // [b] global sample numbers (keys of dropout), or kNoSample
  std::vector<std::vector<std::int32_t>> borders;  // [b] as in GptSample
  std::int64_t target_tokens = 0;                  // labels that are not ignored
};

enum class SampleOrder {
  kSingle,  // sample n is the dataset's number n; the dataset must hold all that are consumed
  kCyclic   // any number of epochs over the dataset's samples, each epoch in an order of its own (a function
            // of the seed and the epoch's number only)
};

// The dataset must live longer. Not for use by several threads at once.
class Loader {
 public:
  explicit Loader(const SampleSet& dataset, SampleOrder order = SampleOrder::kSingle);

  // Global batch that starts at consumed_samples: microbatch `microbatch` of rank `dp_rank`. Fills `out`,
  // reusing its memory. In the kSingle order a sample beyond the dataset is an Error that names both numbers.
  void load(const BatchShape& shape, std::int64_t consumed_samples, std::int64_t microbatch,
            std::int64_t dp_rank, Batch& out);
  // The dataset's number of a global sample.
  std::int64_t dataset_sample(std::int64_t global_sample);

 private:
  const SampleSet& dataset_;
  SampleOrder order_;
  GptSample sample_;
  std::int64_t epoch_ = -1;  // whose order epoch_order_ holds
  std::vector<std::uint32_t> epoch_order_;
};

}  // namespace weft
