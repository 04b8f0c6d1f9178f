#include "nn/attention/context/ring_attention.hpp"

#include <limits>

#include "ops/attention_merge.hpp"
#include "ops/elementwise.hpp"

namespace weft::nn {
namespace {

using Moving = Async<std::vector<Tensor>>;

// [b, heads, s] of some queries, contiguous.
Tensor statistics_of(Lane& lane, const Tensor& lse, const Stretch& queries) {
  if (queries.rows == lse.dim(2)) return lse;
  const Tensor part =
      lane.alloc(lse.dtype(), {lse.dim(0), lse.dim(1), queries.rows}, "attention log-sum-exp");
  ops::copy(lane, lse.slice_columns(queries.row, queries.rows), part);
  return part;
}

}  // namespace

RingAttention::RingAttention(const CoreAttentionShape& shape, Communicator& cp, const SequenceCut& cut)
    : shape_(shape), cp_(cp), cut_(cut) {
  WEFT_CHECK(cut.ranks == cp.size(), "a ring of {} ranks and a sequence cut for {}", cp.size(), cut.ranks);
}

std::vector<RingAttention::Block> RingAttention::blocks(const Microbatch& mb, int source) const {
  std::vector<Block> list;
  const auto add = [&](const Stretch& queries, const Stretch& keys) {
    if (const auto options = attention_between(shape_, mb, queries, keys)) {
      list.push_back({queries, keys, *options});
    }
  };
  const int me = cp_.rank();
  const bool by_order = shape_.window == 0 && shape_.dropout == 0 && !mb.batch.first_keys.defined();
  if (by_order && cut_.chunks() == 2) {
    // Only who comes before whom matters, and a rank's two chunks are in order: as few blocks as possible.
    const Stretch mine{cut_.start(me, 0), 0, cut_.rows()}, theirs{cut_.start(source, 0), 0, cut_.rows()};
    if (source == me) {
      add(mine, mine);
    } else if (source < me) {
      add(mine, stretch_of(cut_, source, 0));
    } else {
      add(stretch_of(cut_, me, 1), theirs);
    }
    return list;
  }
  for (int a = 0; a < cut_.chunks(); ++a) {
    for (int b = 0; b < cut_.chunks(); ++b) add(stretch_of(cut_, me, a), stretch_of(cut_, source, b));
  }
  return list;
}

Tensor RingAttention::forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                              Microbatch& mb) const {
  const std::int64_t rows = q.dim(0), heads = q.columns() / shape_.head_dim;
  WEFT_CHECK(rows == cut_.rows(), "ring attention over {} rows, expected {}", rows, cut_.rows());
  const DType wide = accumulator_of(q.dtype());
  ops::AttentionResult sum{lane.alloc(wide, {rows, q.dim(1), q.columns()}, "attention result"),
                           lane.alloc(wide, {q.dim(1), heads, rows}, "attention log-sum-exp")};
  ops::fill(lane, sum.out, 0);
  ops::fill(lane, sum.lse, -std::numeric_limits<double>::infinity());
  Tensor here = packed_keys_values(lane, k, v);
  for (int step = 0; step < cp_.size(); ++step) {
    Moving moving;
    if (step + 1 < cp_.size()) {
      const Tensor next = lane.alloc(here.dtype(), here.shape(), "keys and values");
      moving = cp_.send_receive(lane, {{neighbour(1), here}}, {{neighbour(-1), next}});
    }
    const Tensor keys = here.slice(0, rows), values = here.slice(rows, rows);
    for (const Block& block : blocks(mb, neighbour(-step))) {
      const ops::AttentionResult into{block.queries.of(sum.out),
                                      sum.lse.slice_columns(block.queries.row, block.queries.rows)};
      ops::merge_attention(lane, into,
                           ops::attention(lane, block.queries.of(q), block.keys.of(keys),
                                          block.keys.of(values), block.options));
    }
    if (step + 1 < cp_.size()) here = moving.wait(lane).front();
  }
  Tensor out = lane.alloc(q.dtype(), q.shape(), "attention result");
  ops::copy(lane, sum.out, out);
  mb.saved.push(Saved{q, k, v, out, sum.lse});
  return out;
}

void RingAttention::backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk,
                             const Tensor& dv, Microbatch& mb) const {
  const Saved saved = mb.saved.pop<Saved>();
  const std::int64_t rows = cut_.rows();
  const DType type = saved.q.dtype(), wide = accumulator_of(type);
  const auto gradient = [&](DType dtype, const Tensor& like) {
    return lane.alloc(dtype, like.shape(), "attention gradient");
  };
  const Tensor queries = gradient(wide, saved.q);
  ops::fill(lane, queries, 0);
  Tensor here = packed_keys_values(lane, saved.k, saved.v), sum;
  Moving gradients;
  for (int step = 0; step < cp_.size(); ++step) {
    Moving moving;
    if (step + 1 < cp_.size()) {
      const Tensor next = lane.alloc(type, here.shape(), "keys and values");
      moving = cp_.send_receive(lane, {{neighbour(1), here}}, {{neighbour(-1), next}});
    }
    const Tensor keys = here.slice(0, rows), values = here.slice(rows, rows);
    // What this rank adds to the gradients of the block that is here.
    const Tensor mine = gradient(wide, here);
    ops::fill(lane, mine, 0);
    for (const auto& [query_rows, key_rows, options] : blocks(mb, neighbour(-step))) {
      const Tensor q = query_rows.of(saved.q), key = key_rows.of(keys), value = key_rows.of(values);
      const Tensor dq_part = gradient(type, q), dk_part = gradient(type, key), dv_part = gradient(type, key);
      const ops::AttentionResult result{query_rows.of(saved.out), statistics_of(lane, saved.lse, query_rows)};
      ops::attention_backward(lane, query_rows.of(dout), q, key, value, result, options, dq_part, dk_part,
                              dv_part);
      ops::add_in_place(lane, query_rows.of(queries), dq_part);
      ops::add_in_place(lane, key_rows.of(mine.slice(0, rows)), dk_part);
      ops::add_in_place(lane, key_rows.of(mine.slice(rows, rows)), dv_part);
    }
    if (step > 0) ops::add_in_place(lane, mine, gradients.wait(lane).front());
    sum = mine;
    if (cp_.size() > 1) {
      const Tensor next = gradient(wide, here);
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
