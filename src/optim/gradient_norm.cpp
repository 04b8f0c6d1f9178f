#include "optim/gradient_norm.hpp"

#include <algorithm>
#include <cmath>

#include "ops/elementwise.hpp"

namespace weft {

double gradient_norm(Lane& lane, const ParamBuffer& buffer, int blocks, int tp_rank, Communicator& model,
                     Communicator& dp, double scale) {
  const Tensor sums = lane.alloc(DType::kF64, {blocks}, "gradient norm");
  ops::fill(lane, sums, 0);
  const Tensor sum = lane.alloc(DType::kF64, {1}, "gradient norm");
  for (const ParamBuffer::Slot& slot : buffer.slots()) {
    const Param& param = *slot.param;
    if (param.traits().copy) continue;
    for (const LogicalTensor& part : param.parts()) {
      if (!part.primary(tp_rank)) continue;
      const Tensor gradient = buffer.owned_gradient(param, part.local_row, part.local_shape()[0]);
      if (gradient.elems() == 0) continue;
      ops::sum_of_squares(lane, gradient, sum);
      ops::add_in_place(lane, sums.slice(param.traits().block, 1), sum);
    }
  }
  if (buffer.distributed()) dp.all_reduce(lane, sums).wait(lane);
  model.all_reduce(lane, sums).wait(lane);
  if (lane.meta()) return 0;
  double total = 0;
  for (const double block : sums.values<double>()) total += block;
  return std::sqrt(total) * scale;
}

double clip_coefficient(double norm, double clip) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

}  // namespace weft
