// Which part of a sequence a context-parallel rank has.
#pragma once

#include <array>
#include <cstdint>

#include "core/check.hpp"

namespace weft::nn {

// The sequence in 2 · ranks chunks, of which rank r has r and 2 · ranks − 1 − r, one after the other: under a
// causal mask all ranks then have the same work (Megatron's and Transformer Engine's assignment;
// SEMANTICS 1.7).
struct Zigzag {
  Zigzag(std::int64_t sequence_length, int rank_count)
      : ranks(rank_count), chunk(sequence_length / (2 * rank_count)) {
    WEFT_CHECK(chunk * 2 * ranks == sequence_length, "a sequence of {} in 2 · {} chunks", sequence_length,
               ranks);
  }
  // First positions of a rank's two chunks.
  std::array<std::int64_t, 2> starts(int rank) const {
    return {rank * chunk, (2 * ranks - 1 - rank) * chunk};
  }

  int ranks;
  std::int64_t chunk;  // positions in each
};

}  // namespace weft::nn
