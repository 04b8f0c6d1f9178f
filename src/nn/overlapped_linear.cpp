#include "nn/overlapped_linear.hpp"

#include "ops/gemm.hpp"

namespace weft::nn {
namespace {

// The shape of x with `rows` indices of dim 0 and `columns` of the last.
Shape resized(const Tensor& x, std::int64_t rows, std::int64_t columns) {
  Shape shape = x.shape();
  shape.set(0, rows);
  shape.set(-1, columns);
  return shape;
}

}  // namespace

Tensor OverlappedColumnParallelLinear::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const Tensor& w = weight_.weight();
  const Tensor bias = bias_ != nullptr ? bias_->weight() : Tensor();
  Tensor y = lane.alloc(x.dtype(), resized(x, border_.inside(x.dim(0)), w.dim(0)), "column-parallel y");
  const std::vector<Chunk> chunks = border_.spread_chunks(x.dim(0));
  Async<Tensor> gathering = border_.spread(lane, x, chunks[0]);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const Tensor x_chunk = gathering.wait(lane);
    if (c + 1 < chunks.size()) gathering = border_.spread(lane, x, chunks[c + 1]);
    std::int64_t row = 0;
    for (const Rows& rows : chunks[c].inside) {
      ops::gemm_nt_into(lane, x_chunk.slice(row, rows.count), w, bias, y.slice(rows.begin, rows.count));
      row += rows.count;
    }
  }
  mb.saved.push(Saved{x});
  return y;
}

Async<Tensor> OverlappedColumnParallelLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  auto [x] = mb.saved.pop<Saved>();
  Async<Tensor> x_full;
  if (gathers_early_) x_full = border_.whole().spread(lane, x);
  const Tensor& w = weight_.weight();
  Async<Tensor> dx =
      border_.combine_product(lane, dy.dtype(), x.shape(), [&](const Rows& rows, const Tensor& out) {
        ops::gemm_nn_into(lane, dy.slice(rows.begin, rows.count), w, out);
      });
  mb.later.push(*this, Pending{dy, std::move(x), std::move(x_full)});
  return dx;
}

void OverlappedColumnParallelLinear::weight_grad(Lane& lane, Pending pending) const {
  if (!pending.x_full.live()) pending.x_full = border_.whole().spread(lane, pending.x);
  const Tensor x_full = pending.x_full.wait(lane);
  ops::gemm_tn_accumulate(lane, pending.dy, x_full, weight_.main_grad(), weight_.beta());
  weight_.ready();
  if (bias_ != nullptr) {
    ops::bias_gradient(lane, pending.dy, bias_->main_grad(), bias_->beta());
    bias_->ready();
  }
}

Tensor OverlappedRowParallelLinear::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const Tensor& w = weight_.weight();
  const Shape outside = resized(x, border_.whole().outside(x.dim(0)), w.dim(0));
  Async<Tensor> y =
      border_.combine_product(lane, x.dtype(), outside, [&](const Rows& rows, const Tensor& out) {
        ops::gemm_nt_into(lane, x.slice(rows.begin, rows.count), w, Tensor(), out);
      });
  mb.saved.push(Saved{x});
  return y.wait(lane);
}

Async<Tensor> OverlappedRowParallelLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  auto [x] = mb.saved.pop<Saved>();
  const Tensor& w = weight_.weight();
  Tensor dx = lane.alloc(dy.dtype(), x.shape(), "row-parallel dx");
  const Tensor dy_full = border_.spread_memory(lane, dy);
  const std::vector<Chunk> chunks = border_.spread_chunks(dy.dim(0));
  Async<Tensor> gathering = border_.spread_into(lane, dy, chunks[0], dy_full);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    gathering.wait(lane);
    if (c + 1 < chunks.size()) gathering = border_.spread_into(lane, dy, chunks[c + 1], dy_full);
    for (const Rows& rows : chunks[c].inside) {
      ops::gemm_nn_into(lane, dy_full.slice(rows.begin, rows.count), w, dx.slice(rows.begin, rows.count));
    }
  }
  mb.later.push(*this, Pending{dy_full, std::move(x)});
  return Async<Tensor>(std::move(dx));
}

void OverlappedRowParallelLinear::weight_grad(Lane& lane, Pending pending) const {
  ops::gemm_tn_accumulate(lane, pending.dy_full, pending.x, weight_.main_grad(), weight_.beta());
  weight_.ready();
}

}  // namespace weft::nn
