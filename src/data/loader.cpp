#include "data/loader.hpp"

#include <algorithm>
#include <numeric>

#include "core/check.hpp"
#include "data/numpy_random.hpp"

namespace weft {

std::vector<std::int64_t> microbatch_samples(const BatchShape& shape, std::int64_t consumed_samples,
                                             std::int64_t microbatch, std::int64_t dp_rank) {
  WEFT_CHECK(shape.global_batch > 0 && shape.micro_batch > 0 && shape.dp_size > 0 && consumed_samples >= 0,
             "global batch {}, micro batch {}, dp {}, consumed {}", shape.global_batch, shape.micro_batch,
             shape.dp_size, consumed_samples);
  WEFT_CHECK(microbatch >= 0 && microbatch < shape.microbatches() && dp_rank >= 0 && dp_rank < shape.dp_size,
             "microbatch {} of {}, rank {} of {}", microbatch, shape.microbatches(), dp_rank, shape.dp_size);
  std::vector<std::int64_t> samples(static_cast<std::size_t>(shape.micro_batch), kNoSample);
  const std::int64_t first = (microbatch * shape.dp_size + dp_rank) * shape.micro_batch;
  for (std::int64_t row = 0; row < shape.micro_batch && first + row < shape.global_batch; ++row)
    samples[static_cast<std::size_t>(row)] = consumed_samples + first + row;
  return samples;
}

Loader::Loader(const SampleSet& dataset, SampleOrder order) : dataset_(dataset), order_(order) {}

std::int64_t Loader::dataset_sample(std::int64_t global_sample) {
  const std::int64_t size = dataset_.size();
  if (order_ == SampleOrder::kSingle) {
    if (global_sample >= size)
      fail("{}: sample {} was asked for, the dataset was built for {}", dataset_.name(), global_sample, size);
    return global_sample;
  }
  const std::int64_t epoch = global_sample / size;
  if (epoch != epoch_) {
    epoch_order_.resize(static_cast<std::size_t>(size));
    std::iota(epoch_order_.begin(), epoch_order_.end(), 0u);
    NumpyRandom random(dataset_.options().seed + static_cast<std::uint32_t>(epoch));
    random.shuffle(std::span(epoch_order_));
    epoch_ = epoch;
  }
  return epoch_order_[static_cast<std::size_t>(global_sample % size)];
}

void Loader::load(const BatchShape& shape, std::int64_t consumed_samples, std::int64_t microbatch,
                  std::int64_t dp_rank, Batch& out) {
  const auto rows = static_cast<std::size_t>(shape.micro_batch);
  const auto length = static_cast<std::size_t>(dataset_.options().sequence_length);
  out.rows = shape.micro_batch;
  out.sequence_length = dataset_.options().sequence_length;
  out.sample_ids = microbatch_samples(shape, consumed_samples, microbatch, dp_rank);
  out.tokens.assign(rows * length, 0);
  out.labels.assign(rows * length, kIgnoredLabel);
  out.position_ids.resize(rows * length);
  out.borders.resize(rows);
  out.target_tokens = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(row * length);
    if (out.sample_ids[row] == kNoSample) {
      std::iota(out.position_ids.begin() + begin, out.position_ids.begin() + begin + std::ptrdiff_t(length),
                0);
      out.borders[row] = {0, static_cast<std::int32_t>(length)};
      continue;
    }
    dataset_.sample(dataset_sample(out.sample_ids[row]), sample_);
    std::copy(sample_.tokens.begin(), sample_.tokens.end(), out.tokens.begin() + begin);
    std::copy(sample_.position_ids.begin(), sample_.position_ids.end(), out.position_ids.begin() + begin);
    out.borders[row] = sample_.borders;
    for (std::size_t i = 0; i < length; ++i) {
      if (sample_.loss_mask[i] == 0.0f) continue;
      out.labels[row * length + i] = sample_.labels[i];
      ++out.target_tokens;
    }
  }
}

}  // namespace weft
