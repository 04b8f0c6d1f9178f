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
  border_.spread_to(lane, x, [&](const Rows& inside, const Tensor& rows) {
    ops::gemm_nt_into(lane, rows, w, bias, y.slice(inside.begin, inside.count));
  });
  mb.saved.push(Saved{kept_input(x, weight_)});
  return y;
}

Async<Tensor> OverlappedColumnParallelLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  auto [x] = mb.saved.pop<Saved>();
  Async<Tensor> x_full;
  if (gathers_early_) x_full = border_.whole().spread(lane, x);
  const Tensor& w = weight_.weight();
  const Shape outside = resized(dy, border_.whole().outside(dy.dim(0)), w.dim(1));
  Async<Tensor> dx =
      border_.combine_from(lane, dy.dtype(), outside, [&](const Rows& inside, const Tensor& rows) {
        ops::gemm_nn_into(lane, dy.slice(inside.begin, inside.count), w, rows);
      });
  if (trains(weight_, bias_)) mb.later.push(*this, Pending{dy, std::move(x), std::move(x_full)});
  return dx;
}

void OverlappedColumnParallelLinear::weight_grad(Lane& lane, Pending pending) const {
  weight_.contribute([&](const Tensor& gradient, float beta) {
    if (!pending.x_full.live()) pending.x_full = border_.whole().spread(lane, pending.x);
    const Tensor x_full = pending.x_full.wait(lane);
    ops::gemm_tn_accumulate(lane, pending.dy, x_full, gradient, beta);
  });
  if (bias_ == nullptr) return;
  bias_->contribute(
      [&](const Tensor& gradient, float beta) { ops::bias_gradient(lane, pending.dy, gradient, beta); });
}

Tensor OverlappedRowParallelLinear::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const Tensor& w = weight_.weight();
  const Shape outside = resized(x, border_.whole().outside(x.dim(0)), w.dim(0));
  Async<Tensor> y =
      border_.combine_from(lane, x.dtype(), outside, [&](const Rows& inside, const Tensor& rows) {
        ops::gemm_nt_into(lane, x.slice(inside.begin, inside.count), w, Tensor(), rows);
      });
  mb.saved.push(Saved{kept_input(x, weight_)});
  return y.wait(lane);
}

Async<Tensor> OverlappedRowParallelLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  auto [x] = mb.saved.pop<Saved>();
  const Tensor& w = weight_.weight();
  Tensor dx = lane.alloc(dy.dtype(), resized(dy, border_.inside(dy.dim(0)), w.dim(1)), "row-parallel dx");
  const Tensor dy_full = border_.spread_whole_to(lane, dy, [&](const Rows& inside, const Tensor& rows) {
    ops::gemm_nn_into(lane, rows, w, dx.slice(inside.begin, inside.count));
  });
  if (weight_.trains()) mb.later.push(*this, Pending{dy_full, std::move(x)});
  return Async<Tensor>(std::move(dx));
}

void OverlappedRowParallelLinear::weight_grad(Lane& lane, Pending pending) const {
  weight_.contribute([&](const Tensor& gradient, float beta) {
    ops::gemm_tn_accumulate(lane, pending.dy_full, pending.x, gradient, beta);
  });
}

}  // namespace weft::nn
