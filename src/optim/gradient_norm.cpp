#include "optim/gradient_norm.hpp"

#include <algorithm>
#include <cmath>

#include "ops/elementwise.hpp"

namespace weft {

double gradient_norm(Lane& lane, const ParamBuffer& buffer, Communicator& tp, double scale) {
  const auto n = static_cast<std::int64_t>(buffer.slots().size());
  // Row 0: parameters cut over tp (to be added over the group); row 1: whole on every rank.
  const Tensor sums = lane.alloc(DType::kF64, {2, n}, "gradient norm");
  ops::fill(lane, sums, 0);
  for (std::int64_t i = 0; i < n; ++i) {
    const ParamBuffer::Slot& slot = buffer.slots()[static_cast<std::size_t>(i)];
    const bool cut = slot.param->parts().front().cut >= 0;
    ops::sum_of_squares(lane, buffer.gradients().slice(slot.offset, slot.elems),
                        sums.slice(cut ? 0 : 1, 1).view({n}).slice(i, 1));
  }
  tp.all_reduce(lane, sums.slice(0, 1)).wait(lane);
  if (lane.meta()) return 0;
  const double* s = sums.data<double>();
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i) total += s[i] + s[n + i];
  return std::sqrt(total) * scale;
}

double clip_coefficient(double norm, double clip) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

}  // namespace weft
