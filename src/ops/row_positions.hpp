// Where the rows of a part of a sequence stand in the whole of it.
#pragma once

#include <cstdint>
#include <limits>

namespace weft::ops {

// Rows [0, count) stand at positions first, first + 1, ...; those after them at next, next + 1, ... No rank
// has more than two such runs (see nn/sequence_part.hpp).
struct RowPositions {
  std::int64_t first = 0;
  std::int64_t count = std::numeric_limits<std::int64_t>::max();
  std::int64_t next = 0;
  constexpr std::int64_t of(std::int64_t row) const {
    return row < count ? first + row : next + (row - count);
  }
  // The positions of rows [row, ...).
  constexpr RowPositions from(std::int64_t row) const {
    if (row < count) return {first + row, count - row, next};
    return {of(row)};
  }
};

}  // namespace weft::ops
