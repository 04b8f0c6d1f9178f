// What of a batch's sequences a rank has, and how it gets there.
#pragma once

#include <optional>

#include "data/loader.hpp"
#include "nn/microbatch.hpp"
#include "nn/sequence_cut.hpp"

namespace weft {

struct FeedOptions {
  std::int64_t micro_batch = 1, sequence_length = 0;
  // How sequences are cut over `cp` ranks, of which each rank's rows are cut over `sequence_parallel` more.
  // What a length lacks to be cut evenly is filled up with tokens that count nowhere.
  nn::SequenceOrder order = nn::SequenceOrder::kZigzag;
  int cp = 1, cp_rank = 0, sequence_parallel = 1, sequence_parallel_rank = 0;
  bool positions = false;  // from the data, one for each token (documents have their own)
  bool documents = false;  // are kept apart by attention
  bool experts = false;    // what routers must know of each token
};

class MicrobatchFeed {
 public:
  explicit MicrobatchFeed(const FeedOptions& options);

  // None: the rank has whole sequences.
  const std::optional<nn::SequenceCut>& cut() const { return cut_; }
  std::int64_t rows() const;    // of a sequence, on this rank
  std::int64_t length() const;  // of a sequence, filled up

  // Batches of micro_batch sequences; a meta lane reads none.
  MicrobatchData bring(Lane& lane, const Batch& batch) const;

 private:
  void bring_what_routers_ask(Lane& lane, const Batch& batch, MicrobatchData& data) const;

  FeedOptions options_;
  std::optional<nn::SequenceCut> cut_;
};

}  // namespace weft
