#include "ops/flat_pieces.hpp"

#include <algorithm>

#include "ops/checks.hpp"
#include "ops/costs.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"
#include "ops/twins.hpp"

namespace weft::ops {

FlatPieces::FlatPieces(Lane& lane, std::vector<FlatPiece> pieces, std::int64_t most)
    : list_(std::move(pieces)) {
  std::vector<std::int64_t> table;
  for (const FlatPiece& p : list_) {
    owned_end_ = std::max(owned_end_, p.owned + p.elems);
    offset_end_ = std::max(offset_end_, p.offset + p.elems);
    for (std::int64_t at = 0; at < p.elems; at += kChunk) {
      table.insert(table.end(), {p.owned + at, p.offset + at, std::min(kChunk, p.elems - at), p.tag});
    }
  }
  if (lane.target() == DeviceKind::kCpu) return;
  const Shape shape{static_cast<std::int64_t>(table.size() / 4), 4};
  most_ = most > 0 ? most : shape[0];
  WEFT_CHECK(most_ >= shape[0], "{} chunks of flat memory, at most {} were expected", shape[0], most_);
  chunks_ = lane.alloc(DType::kI64, {most_, 4}, "pieces of flat memory").slice(0, shape[0]);
  if (!lane.meta() && !table.empty()) copy(lane, Tensor::borrow(table.data(), DType::kI64, shape), chunks_);
}

void sums_of_squares(Lane& lane, const FlatPieces& pieces, const Tensor& x, const Tensor& out) {
  check_floating(x, "sums_of_squares", "x");
  WEFT_CHECK(x.contiguous() && x.elems() >= pieces.offset_end(), "sums_of_squares: pieces up to {} of {}",
             pieces.offset_end(), describe(x));
  check_vector(out, out.elems(), DType::kF64, "sums_of_squares", "out");
  const Tensor partial =
      lane.alloc(DType::kF64, {WEFT_OPS_SIZE(lane, sums_of_squares_partials, pieces)}, "partial sums");
  WEFT_OPS_DISPATCH(lane, sums_of_squares, pieces, x, partial, out);
}

}  // namespace weft::ops
