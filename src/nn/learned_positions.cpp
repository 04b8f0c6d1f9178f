#include "nn/learned_positions.hpp"

#include <algorithm>

#include "ops/elementwise.hpp"
#include "ops/embedding.hpp"

namespace weft::nn {
namespace {

// The position of each row of x, as ids of one sequence: [1, s · b].
Tensor ids_of(const TensorParallelBorder& border, const Tensor& x, const Microbatch& mb) {
  const Tensor mine = mb.batch.position_ids.slice(border.first_outside(x.dim(0)), x.dim(0));
  return mine.view({1, x.rows()});
}

}  // namespace

std::array<PositionsByPlace::Run, 2> PositionsByPlace::runs(const Microbatch& mb, std::int64_t rows) const {
  const ops::RowPositions at = border_.positions_outside(rows);
  const std::int64_t end = table_.weight().dim(0), split = std::min(at.count, rows);
  const auto run = [&](std::int64_t row, std::int64_t count) -> Run {
    const std::int64_t position = mb.batch.first_position + at.of(row);
    return {row, std::clamp<std::int64_t>(end - position, 0, count), position};
  };
  return {run(0, split), run(split, rows - split)};
}

void PositionsByPlace::add(Lane& lane, const Tensor& x, const Microbatch& mb) const {
  for (const Run& run : runs(mb, x.dim(0))) {
    if (run.rows > 0) ops::add_positions(lane, x.slice(run.row, run.rows), table_.weight(), run.position);
  }
}

void PositionsByPlace::backward(Lane& lane, const Tensor& dx, const Microbatch& mb) const {
  table_.contribute([&](const Tensor& gradient, float beta) {
    for (const Run& run : runs(mb, dx.dim(0))) {
      if (run.rows == 0 && run.row > 0) continue;  // the first one applies beta in any case
      ops::add_positions_backward(lane, dx.slice(run.row, run.rows), gradient,
                                  run.rows > 0 ? run.position : 0, run.row > 0 ? 1 : beta);
    }
  });
}

void PositionsByDocument::add(Lane& lane, const Tensor& x, const Microbatch& mb) const {
  const Tensor rows = ops::embedding(lane, ids_of(border_, x, mb), table_.weight(), 0);
  ops::add_in_place(lane, x, rows.view(x.shape()));
}

void PositionsByDocument::backward(Lane& lane, const Tensor& dx, const Microbatch& mb) const {
  table_.contribute([&](const Tensor& gradient, float beta) {
    ops::embedding_backward(lane, dx.view({dx.rows(), 1, dx.columns()}), ids_of(border_, dx, mb), gradient, 0,
                            beta);
  });
}

}  // namespace weft::nn
