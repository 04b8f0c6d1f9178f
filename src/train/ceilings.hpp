// How operations are timed, and the two ceilings that they are held against.
#pragma once

#include <functional>

#include "core/lane.hpp"

namespace weft {

// Returns when all that the lane has been given is done.
void synchronize(Lane& lane);

// Milliseconds of the operations in run(): on a GPU by the events of a trace, without the gaps between them;
// on the CPU by the clock.
double milliseconds(Lane& lane, const std::function<void()>& run);

// Numbers as training has them: standard normal ones, scaled. All zeros would let a GPU run faster than it
// does. A block of them is drawn and repeated, for rows that differ.
void fill_normal(Lane& lane, const Tensor& x, double scale = 1);

// Bytes read and written, and floating-point operations, a second.
struct Ceilings {
  double copy_rate = 0, product_rate = 0;
};
// Of a copy of memory far larger than the cache, and a product of square matrices; as large as the arena has
// room for now, within `copy_bytes` for each end and this side. The fastest of some tries.
struct CeilingSizes {
  std::size_t copy_bytes = 0;
  std::int64_t side = 0;

  static CeilingSizes of(DeviceKind kind);
  // Memory to leave for them.
  std::size_t bytes(DType dtype) const;
};
Ceilings measure_ceilings(Lane& lane, DType dtype, CeilingSizes sizes);

}  // namespace weft
