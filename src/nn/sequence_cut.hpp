// How context parallelism cuts a sequence over ranks: the one place that knows which positions a rank has.
// Tokens, labels, rotary and learned positions, dropout masks and attention all go by it (SEMANTICS 1.7).
#pragma once

#include <cstdint>

#include "core/check.hpp"
#include "ops/row_positions.hpp"

namespace weft::nn {

enum class SequenceOrder {
  // The sequence in 2 · ranks chunks, of which rank r has r and 2 · ranks − 1 − r, one after the other: under
  // a causal mask all ranks then have the same work (Megatron's and Transformer Engine's assignment).
  kZigzag,
  // The sequence in as many chunks as ranks, in their order: for attention that sees whole sequences.
  kContiguous
};

struct SequenceCut {
  // `length`: a multiple of what multiple() says.
  SequenceCut(SequenceOrder sequence_order, std::int64_t length, int rank_count)
      : order(sequence_order), ranks(rank_count), chunk(length / multiple(sequence_order, rank_count, 1)) {
    WEFT_CHECK(this->length() == length, "a sequence of {} in {} chunks for each of {} ranks", length,
               chunks(), ranks);
  }

  // What lengths must be a multiple of for every rank's rows to be one of `rows`, in whole chunks: without
  // sequence parallel rows is 1, with it the tensor-parallel size.
  static std::int64_t multiple(SequenceOrder order, int ranks, std::int64_t rows);

  int chunks() const { return order == SequenceOrder::kZigzag ? 2 : 1; }  // of a rank
  std::int64_t rows() const { return chunks() * chunk; }                  // of a rank
  std::int64_t length() const { return rows() * ranks; }
  // The place of a rank's chunk i among all chunks; the first position in it.
  int number(int rank, int i) const { return i == 0 ? rank : 2 * ranks - 1 - rank; }
  std::int64_t start(int rank, int i) const { return number(rank, i) * chunk; }
  // Who has chunk `number`, and as which of its own.
  struct Place {
    int rank = 0, index = 0;
  };
  Place place(int number) const {
    return number < ranks ? Place{number, 0} : Place{2 * ranks - 1 - number, 1};
  }
  // Of a rank's rows.
  ops::RowPositions positions(int rank) const {
    if (chunks() == 1) return {.first = start(rank, 0)};
    return {.first = start(rank, 0), .count = chunk, .next = start(rank, 1)};
  }

  SequenceOrder order;
  int ranks;
  std::int64_t chunk;  // positions in each
};

}  // namespace weft::nn
