// Initial weights.
#pragma once

#include "core/lane.hpp"
#include "core/rng.hpp"

namespace weft::ops {

// Which elements of a larger matrix (or vector, of one column) a tensor holds.
struct ElementRange {
  std::int64_t first_row = 0, first_column = 0;
  std::int64_t columns = 1;  // of the larger one
};

// x = std · normal(key, element's index in the larger matrix), see core/rng.hpp; drawn in double. x: matrix
// or vector of any floating dtype, may be strided. Devices differ by the last bits of their logarithm and
// sine.
void fill_normal(Lane& lane, const Tensor& x, RandomKey key, double std, const ElementRange& range);

}  // namespace weft::ops
