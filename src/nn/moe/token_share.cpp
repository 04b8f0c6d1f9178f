#include "nn/moe/token_share.hpp"

#include <algorithm>

#include "ops/elementwise.hpp"

namespace weft::nn {
namespace {

// [s, b, ...] -> [s · b, ...]
Shape flat(const Shape& x) {
  return x.rank() == 2 ? Shape{x[0] * x[1]} : Shape{x[0] * x[1], x[2]};
}

}  // namespace

Tensor OwnTokens::take(Lane&, const Tensor& x) const {
  return x.view(flat(x.shape()));
}

Tensor SharedTokens::take(Lane& lane, const Tensor& x) const {
  // Whole positions, so that row i of a share is of sequence i mod b there too.
  const std::int64_t b = x.dim(1), rows = x.dim(0) * b, share = (x.dim(0) + tp_.size() - 1) / tp_.size() * b;
  const Tensor all = x.view(flat(x.shape()));
  const std::int64_t first = std::min(tp_.rank() * share, rows), count = std::min(share, rows - first);
  if (count == share) return all.slice(first, share);
  Shape shape = all.shape();
  shape.set(0, share);
  Tensor own = lane.alloc(all.dtype(), shape, "own tokens");
  ops::fill(lane, own.slice(count, share - count), 0);
  ops::copy(lane, all.slice(first, count), own.slice(0, count));
  return own;
}

Tensor SharedTokens::give(Lane& lane, const Tensor& y, const Shape& shape) const {
  const Tensor all = tp_.all_gather(lane, y).wait(lane);
  return all.slice(0, shape[0] * shape[1]).view(shape);
}

}  // namespace weft::nn
