#include "train/microbatch_feed.hpp"

#include <algorithm>
#include <numeric>

#include "ops/elementwise.hpp"

namespace weft {
namespace {

std::optional<nn::SequenceCut> cut_of(const FeedOptions& o) {
  if (o.cp == 1) return std::nullopt;
  const std::int64_t unit = nn::SequenceCut::multiple(o.order, o.cp, o.sequence_parallel);
  return nn::SequenceCut(o.order, (o.sequence_length + unit - 1) / unit * unit, o.cp);
}

}  // namespace

MicrobatchFeed::MicrobatchFeed(const FeedOptions& options) : options_(options), cut_(cut_of(options)) {}

std::int64_t MicrobatchFeed::rows() const {
  return cut_ ? cut_->rows() : options_.sequence_length;
}

std::int64_t MicrobatchFeed::length() const {
  return cut_ ? cut_->length() : options_.sequence_length;
}

MicrobatchData MicrobatchFeed::bring(Lane& lane, const Batch& batch) const {
  const std::int64_t b = options_.micro_batch, s = options_.sequence_length;
  WEFT_CHECK(lane.meta() || (batch.rows == b && batch.sequence_length == s),
             "a microbatch of {} x {}, expected {} x {}", batch.rows, batch.sequence_length, b, s);
  std::vector<std::int32_t> part;
  // Values of [b, s] at the positions of this rank, `filler` past the end of a sequence.
  const auto of_rows = [&](const std::vector<std::int32_t>& whole, std::int32_t filler, const char* what) {
    const Tensor to = lane.alloc(DType::kI32, {b, rows()}, what);
    if (!cut_ || lane.meta()) {
      ops::from_host(lane, whole, to);
      return to;
    }
    const ops::RowPositions positions = cut_->positions(options_.cp_rank);
    part.clear();
    for (std::int64_t i = 0; i < b; ++i) {
      for (std::int64_t row = 0; row < rows(); ++row) {
        const std::int64_t at = positions.of(row);
        part.push_back(at < s ? whole[static_cast<std::size_t>(i * s + at)] : filler);
      }
    }
    ops::from_host(lane, part, to);
    return to;
  };
  MicrobatchData data;
  data.tokens = of_rows(batch.tokens, 0, "tokens");
  data.labels = of_rows(batch.labels, kIgnoredLabel, "labels");
  if (options_.positions) {
    data.position_ids = lane.alloc(DType::kI32, {rows(), b}, "position ids");
    const ops::RowPositions positions = cut_ ? cut_->positions(options_.cp_rank) : ops::RowPositions{};
    part.clear();
    for (std::int64_t row = 0; row < rows() && !lane.meta(); ++row) {
      const std::int64_t at = positions.of(row);
      for (std::int64_t i = 0; i < b; ++i) {
        part.push_back(at < s ? batch.position_ids[static_cast<std::size_t>(i * s + at)] : 0);
      }
    }
    ops::from_host(lane, part, data.position_ids);
  }
  data.sample_ids = lane.alloc(DType::kI64, {b}, "sample ids");
  ops::from_host(lane, batch.sample_ids, data.sample_ids);
  if (options_.documents) {
    data.first_keys = lane.alloc(DType::kI32, {b, length()}, "document beginnings");
    part.assign(static_cast<std::size_t>(lane.meta() ? 0 : b * length()), 0);
    for (std::int64_t i = 0; i < b && !lane.meta(); ++i) {
      const std::vector<std::int32_t>& borders = batch.borders[static_cast<std::size_t>(i)];
      for (std::size_t d = 0; d + 1 < borders.size(); ++d) {
        // The last document takes what fills the sequence up: nothing of it counts.
        const std::int64_t end = d + 2 < borders.size() ? borders[d + 1] : length();
        std::fill(part.begin() + i * length() + borders[d], part.begin() + i * length() + end, borders[d]);
      }
    }
    ops::from_host(lane, part, data.first_keys);
  }
  if (options_.experts) bring_what_routers_ask(lane, batch, data);
  return data;
}

void MicrobatchFeed::bring_what_routers_ask(Lane& lane, const Batch& batch, MicrobatchData& data) const {
  const std::int64_t b = options_.micro_batch, s = options_.sequence_length,
                     mine = rows() / options_.sequence_parallel,
                     first = mine * options_.sequence_parallel_rank;
  const ops::RowPositions positions = cut_ ? cut_->positions(options_.cp_rank) : ops::RowPositions{};
  std::vector<std::uint8_t> counted;
  std::vector<std::int32_t> places;
  for (std::int64_t row = first; row < first + mine && !lane.meta(); ++row) {
    const std::int64_t at = positions.of(row);
    for (std::int64_t i = 0; i < b; ++i) {
      counted.push_back(at < s && batch.sample_ids[static_cast<std::size_t>(i)] != kNoSample);
      places.push_back(static_cast<std::int32_t>(at * b + i));
    }
  }
  data.counted = lane.alloc(DType::kU8, {mine, b}, "counted tokens");
  data.places = lane.alloc(DType::kI32, {mine, b}, "places of tokens");
  ops::from_host(lane, counted, data.counted);
  ops::from_host(lane, places, data.places);
}

}  // namespace weft
