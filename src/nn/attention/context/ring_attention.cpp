#include "nn/attention/context/ring_attention.hpp"

#include <limits>

#include "ops/attention_merge.hpp"
#include "ops/elementwise.hpp"

namespace weft::nn {
namespace {

using Moving = Async<std::vector<Tensor>>;

// Keys and values (or their gradients) of a rank in one contiguous message: [2 · s/cp, b, groups · d].
Tensor packed(Lane& lane, const Tensor& k, const Tensor& v) {
  const std::int64_t rows = k.dim(0);
  Tensor both = lane.alloc(k.dtype(), {2 * rows, k.dim(1), k.columns()}, "keys and values");
  ops::copy(lane, k, both.slice(0, rows));
  ops::copy(lane, v, both.slice(rows, rows));
  return both;
}

// Chunk `half` of the keys (of: 0) or of the values (of: 1).
Tensor chunk_of(const Tensor& both, int of, int half) {
  const std::int64_t chunk = both.dim(0) / 4;
  return both.slice((2 * of + half) * chunk, chunk);
}

}  // namespace

RingAttention::RingAttention(const CoreAttentionShape& shape, Communicator& cp) : shape_(shape), cp_(cp) {
  WEFT_CHECK(shape.dropout == 0, "ring attention with a dropout of {}", shape.dropout);
}

std::optional<ops::AttentionOptions> RingAttention::pair(const Zigzag& zigzag, std::int64_t queries,
                                                         std::int64_t keys) const {
  const std::int64_t distance = queries - keys;
  if (distance < 0) return std::nullopt;
  if (shape_.window > 0 && distance - zigzag.chunk + 1 >= shape_.window) return std::nullopt;
  ops::AttentionOptions options{.head_dim = shape_.head_dim,
                                .scale = shape_.scale,
                                .causal = distance == 0 || shape_.window > 0,
                                .window = shape_.window,
                                .deterministic = shape_.deterministic};
  if (options.causal) options.query_offset = distance;
  return options;
}

Tensor RingAttention::forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                              Microbatch& mb) const {
  const std::int64_t rows = q.dim(0), heads = q.columns() / shape_.head_dim;
  const Zigzag zigzag(rows * cp_.size(), cp_.size());
  const DType wide = accumulator_of(q.dtype());
  ops::AttentionResult sums[2];
  for (ops::AttentionResult& sum : sums) {
    sum = {lane.alloc(wide, {zigzag.chunk, q.dim(1), q.columns()}, "attention result"),
           lane.alloc(wide, {q.dim(1), heads, zigzag.chunk}, "attention log-sum-exp")};
    ops::fill(lane, sum.out, 0);
    ops::fill(lane, sum.lse, -std::numeric_limits<double>::infinity());
  }
  Tensor here = packed(lane, k, v);
  for (int step = 0; step < cp_.size(); ++step) {
    Moving moving;
    if (step + 1 < cp_.size()) {
      const Tensor next = lane.alloc(here.dtype(), here.shape(), "keys and values");
      moving = cp_.send_receive(lane, {{neighbour(1), here}}, {{neighbour(-1), next}});
    }
    for (int a = 0; a < 2; ++a) {
      for (int half = 0; half < 2; ++half) {
        const auto options = pair(zigzag, zigzag.starts(cp_.rank())[static_cast<std::size_t>(a)],
                                  zigzag.starts(neighbour(-step))[static_cast<std::size_t>(half)]);
        if (!options) continue;
        ops::merge_attention(lane, sums[a],
                             ops::attention(lane, q.slice(a * zigzag.chunk, zigzag.chunk),
                                            chunk_of(here, 0, half), chunk_of(here, 1, half), *options));
      }
    }
    if (step + 1 < cp_.size()) here = moving.wait(lane).front();
  }
  Tensor out = lane.alloc(q.dtype(), q.shape(), "attention result");
  for (int a = 0; a < 2; ++a) ops::copy(lane, sums[a].out, out.slice(a * zigzag.chunk, zigzag.chunk));
  mb.saved.push(Saved{q, k, v, out, {sums[0].lse, sums[1].lse}});
  return out;
}

void RingAttention::backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk,
                             const Tensor& dv, Microbatch& mb) const {
  const Saved saved = mb.saved.pop<Saved>();
  const std::int64_t rows = saved.q.dim(0);
  const Zigzag zigzag(rows * cp_.size(), cp_.size());
  const DType type = saved.q.dtype(), wide = accumulator_of(type);
  const auto part = [&](const Tensor& x, int half) { return x.slice(half * zigzag.chunk, zigzag.chunk); };
  const Tensor queries = lane.alloc(wide, saved.q.shape(), "attention gradient");
  ops::fill(lane, queries, 0);
  Tensor here = packed(lane, saved.k, saved.v), sum;
  Moving gradients;
  for (int step = 0; step < cp_.size(); ++step) {
    Moving moving;
    if (step + 1 < cp_.size()) {
      const Tensor next = lane.alloc(type, here.shape(), "keys and values");
      moving = cp_.send_receive(lane, {{neighbour(1), here}}, {{neighbour(-1), next}});
    }
    // What this rank adds to the gradients of the block that is here.
    const Tensor mine = lane.alloc(wide, here.shape(), "attention gradient");
    ops::fill(lane, mine, 0);
    for (int a = 0; a < 2; ++a) {
      for (int half = 0; half < 2; ++half) {
        const auto options = pair(zigzag, zigzag.starts(cp_.rank())[static_cast<std::size_t>(a)],
                                  zigzag.starts(neighbour(-step))[static_cast<std::size_t>(half)]);
        if (!options) continue;
        const Tensor q = part(saved.q, a), key = chunk_of(here, 0, half), value = chunk_of(here, 1, half);
        const Tensor dq_part = lane.alloc(type, q.shape(), "attention gradient"),
                     dk_part = lane.alloc(type, key.shape(), "attention gradient"),
                     dv_part = lane.alloc(type, key.shape(), "attention gradient");
        ops::attention_backward(lane, part(dout, a), q, key, value, {part(saved.out, a), saved.lse[a]},
                                *options, dq_part, dk_part, dv_part);
        ops::add_in_place(lane, part(queries, a), dq_part);
        ops::add_in_place(lane, chunk_of(mine, 0, half), dk_part);
        ops::add_in_place(lane, chunk_of(mine, 1, half), dv_part);
      }
    }
    if (step > 0) ops::add_in_place(lane, mine, gradients.wait(lane).front());
    sum = mine;
    if (cp_.size() > 1) {
      const Tensor next = lane.alloc(wide, here.shape(), "attention gradient");
      gradients = cp_.send_receive(lane, {{neighbour(1), sum}}, {{neighbour(-1), next}});
    }
    if (step + 1 < cp_.size()) here = moving.wait(lane).front();
  }
  if (cp_.size() > 1) sum = gradients.wait(lane).front();  // this rank's own, back again
  ops::copy(lane, queries, dq);
  ops::copy(lane, sum.slice(0, rows), dk);
  ops::copy(lane, sum.slice(rows, rows), dv);
}

}  // namespace weft::nn
