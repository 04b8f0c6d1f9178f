#include "nn/attention/latent_attention.hpp"

#include "ops/elementwise.hpp"
#include "ops/head_columns.hpp"

namespace weft::nn {
namespace {

// Columns [first, first + count) of every head of a contiguous x [s, b, heads · head_dim]: a view.
Tensor of_heads(const Tensor& x, std::int64_t head_dim, std::int64_t first, std::int64_t count) {
  return x.view({x.dim(0), x.dim(1) * x.columns() / head_dim, head_dim}).slice_columns(first, count);
}

}  // namespace

Tensor LowRankLinear::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  return up_->forward(lane, norm_->forward(lane, down_->forward(lane, x, mb), mb), mb);
}

Async<Tensor> LowRankLinear::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  const Tensor dnormed = input_gradient(lane, *up_, dy, mb);
  return down_->backward(lane, norm_->backward(lane, dnormed, Tensor(), mb), mb);
}

// [s, b, heads · head_dim()], s and b of `like`, zero behind the first `used` channels of each head.
Tensor LatentAttention::full_heads(Lane& lane, const Tensor& like, std::int64_t used,
                                   const char* what) const {
  const std::int64_t d = heads_.head_dim();
  const Tensor y = lane.alloc(like.dtype(), {like.dim(0), like.dim(1), heads_.heads * d}, what);
  if (used < d) ops::fill(lane, of_heads(y, d, used, d - used), 0);
  return y;
}

Tensor LatentAttention::queries(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const auto [heads, rotated, still, value, latent] = heads_;
  const Tensor flat = parts_.query->forward(lane, x, mb);
  const Tensor q = full_heads(lane, flat, rotated + still, "latent attention q");
  ops::copy(lane, of_heads(flat, still + rotated, still, rotated),
            of_heads(q, heads_.head_dim(), 0, rotated));
  ops::copy(lane, of_heads(flat, still + rotated, 0, still), of_heads(q, heads_.head_dim(), rotated, still));
  parts_.query_rotation->apply(lane, q, mb);
  return q;
}

LatentAttention::KeysValues LatentAttention::keys_values(Lane& lane, const Tensor& x, Microbatch& mb) const {
  const auto [heads, rotated, still, value, latent] = heads_;
  const std::int64_t d = heads_.head_dim();
  const Tensor down = parts_.kv_down->forward(lane, x, mb);
  const Tensor own = down.slice_columns(latent, rotated);
  Async<Tensor> spread = border_.spread(lane, ops::cast(lane, own, own.dtype(), "rotated keys"));
  const Tensor normed = parts_.kv_norm->forward(lane, down.slice_columns(0, latent), mb);
  const Tensor flat = parts_.kv_up->forward(lane, normed, mb);
  const Tensor shared = spread.wait(lane);
  parts_.key_rotation->apply(lane, shared, mb);

  KeysValues out{full_heads(lane, flat, rotated + still, "latent attention k"),
                 full_heads(lane, flat, value, "latent attention v")};
  ops::copy_to_heads(lane, shared, out.k, d, 0);
  ops::copy(lane, of_heads(flat, still + value, 0, still), of_heads(out.k, d, rotated, still));
  ops::copy(lane, of_heads(flat, still + value, still, value), of_heads(out.v, d, 0, value));
  return out;
}

Tensor LatentAttention::forward(Lane& lane, const Tensor& x, Microbatch& mb) const {
  Tensor result;
  {
    const Tensor q = queries(lane, x, mb);
    const auto [k, v] = keys_values(lane, x, mb);
    const Tensor context = parts_.core->forward(lane, q, k, v, mb);
    result = lane.alloc(context.dtype(), {context.dim(0), context.dim(1), heads_.heads * heads_.value},
                        "latent attention result");
    ops::copy(lane, of_heads(context, heads_.head_dim(), 0, heads_.value),
              result.view({result.dim(0), result.dim(1) * heads_.heads, heads_.value}));
  }
  return parts_.proj->forward(lane, result, mb);
}

Tensor LatentAttention::queries_backward(Lane& lane, const Tensor& dq, Microbatch& mb) const {
  const auto [heads, rotated, still, value, latent] = heads_;
  parts_.query_rotation->apply_backward(lane, dq, mb);
  const Tensor flat =
      lane.alloc(dq.dtype(), {dq.dim(0), dq.dim(1), heads * (still + rotated)}, "latent attention dq");
  ops::copy(lane, of_heads(dq, heads_.head_dim(), 0, rotated),
            of_heads(flat, still + rotated, still, rotated));
  ops::copy(lane, of_heads(dq, heads_.head_dim(), rotated, still), of_heads(flat, still + rotated, 0, still));
  return input_gradient(lane, *parts_.query, flat, mb);
}

Tensor LatentAttention::keys_values_backward(Lane& lane, const Tensor& dk, const Tensor& dv,
                                             Microbatch& mb) const {
  const auto [heads, rotated, still, value, latent] = heads_;
  const std::int64_t d = heads_.head_dim(), s = dk.dim(0), b = dk.dim(1);
  const Tensor shared = lane.alloc(dk.dtype(), {s, b, rotated}, "rotated keys' gradient");
  ops::sum_of_heads(lane, dk, d, 0, shared);
  parts_.key_rotation->apply_backward(lane, shared, mb);
  Async<Tensor> combined = border_.combine(lane, shared);

  Tensor flat = lane.alloc(dk.dtype(), {s, b, heads * (still + value)}, "latent attention dkv");
  ops::copy(lane, of_heads(dk, d, rotated, still), of_heads(flat, still + value, 0, still));
  ops::copy(lane, of_heads(dv, d, 0, value), of_heads(flat, still + value, still, value));
  const Tensor dnormed = input_gradient(lane, *parts_.kv_up, flat, mb);
  flat = Tensor();
  const Tensor dlatent = parts_.kv_norm->backward(lane, dnormed, Tensor(), mb);
  const Tensor ddown =
      lane.alloc(dk.dtype(), {dlatent.dim(0), b, latent + rotated}, "latent attention ddown");
  ops::copy(lane, dlatent, ddown.slice_columns(0, latent));
  ops::copy(lane, combined.wait(lane), ddown.slice_columns(latent, rotated));
  return input_gradient(lane, *parts_.kv_down, ddown, mb);
}

Tensor LatentAttention::backward(Lane& lane, const Tensor& dy, Microbatch& mb) const {
  Tensor dq, dk, dv;
  {
    const Tensor dresult = input_gradient(lane, *parts_.proj, dy, mb);
    const Tensor dcontext = full_heads(lane, dresult, heads_.value, "latent attention dout");
    ops::copy(lane, dresult.view({dresult.dim(0), dresult.dim(1) * heads_.heads, heads_.value}),
              of_heads(dcontext, heads_.head_dim(), 0, heads_.value));
    for (Tensor* const gradient : {&dq, &dk, &dv}) {
      *gradient = lane.alloc(dcontext.dtype(), dcontext.shape(), "latent attention gradient");
    }
    parts_.core->backward(lane, dcontext, dq, dk, dv, mb);
  }
  const Tensor dx = keys_values_backward(lane, dk, dv, mb);
  dk = dv = Tensor();
  ops::add_in_place(lane, dx, queries_backward(lane, dq, mb));
  return dx;
}

}  // namespace weft::nn
