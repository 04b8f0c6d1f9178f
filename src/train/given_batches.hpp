// --batches FILE.safetensors: input_ids and labels [N, B, S], N global batches of B rows, in order.
#pragma once

#include "train/run_data.hpp"

namespace weft {

RunData open_given_batches(TrainConfig& config);

// Rows [B, S] as samples: `input_ids` (and `labels`, or the input shifted left with the last position
// ignored). Used by scoring; `vocabulary` bounds the ids. Faults are ConfigErrors naming file, tensor,
// position and number.
class GivenRows final : public SampleSource {
 public:
  GivenRows(const std::string& file, std::int64_t vocabulary);
  std::unique_ptr<SampleReader> reader() const override;
  std::int64_t samples() const override { return rows_; }
  std::int64_t sequence_length() const { return sequence_; }
  std::int64_t batches() const { return batches_; }  // N; 1 for [B, S]

 private:
  std::int64_t batches_ = 0, rows_ = 0, sequence_ = 0;  // rows_ = N · B
  std::vector<std::int32_t> tokens_, labels_;           // [N · B, S]
};

}  // namespace weft
