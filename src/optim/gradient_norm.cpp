#include "optim/gradient_norm.hpp"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

ops::FlatPieces counted_here(Lane& lane, const ParamBuffer& buffer, int tp_rank) {
  std::vector<ops::FlatPiece> pieces;
  std::size_t parts = 0;
  for (const ParamBuffer::Slot& slot : buffer.slots()) {
    const Param& param = *slot.param;
    parts += param.parts().size();
    if (param.traits().copy) continue;
    for (const LogicalTensor& part : param.parts()) {
      if (!part.primary(tp_rank)) continue;
      const ParamBuffer::Range owned = buffer.owned_range(param, part.local_row, part.local_shape()[0]);
      if (owned.elems == 0) continue;
      pieces.push_back({.offset = owned.offset, .elems = owned.elems, .tag = param.traits().block});
    }
  }
  return {lane, std::move(pieces), ops::FlatPieces::most_chunks(buffer.owned_elems(), parts)};
}

}  // namespace

GradientNorm::GradientNorm(Lane& lane, const ParamBuffer& buffer, int blocks, int tp_rank,
                           Communicator& model, Communicator& dp)
    : buffer_(buffer),
      blocks_(blocks),
      model_(model),
      dp_(dp),
      pieces_(counted_here(lane, buffer, tp_rank)) {}

Tensor GradientNorm::sums(Lane& lane) const {
  const TraceScope traced(lane.tools, "norm");
  Tensor sums = lane.alloc(DType::kF64, {blocks_}, "gradient norm");
  ops::sums_of_squares(lane, pieces_, buffer_.gradients(), sums);
  if (buffer_.distributed()) dp_.all_reduce(lane, sums).wait(lane);
  model_.all_reduce(lane, sums).wait(lane);
  return sums;
}

double GradientNorm::norm(std::span<const double> sums, double scale) {
  double total = 0;
  for (const double block : sums) total += block;
  return std::sqrt(total) * scale;
}

double clip_coefficient(double norm, double clip) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

}  // namespace weft
