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

std::vector<RingAttention::Block> RingAttention::blocks(Lane& lane, const Microbatch& mb, std::int64_t heads,
                                                        int source, Part part) const {
  std::vector<Block> list;
  const int me = cp_.rank();
  const auto add = [&](const Stretch& queries, const Stretch& keys) {
    auto options = attention_between(lane, shape_, mb, heads, queries, keys);
    if (!options) return;
    if (source != me || queries.position != keys.position) options->sinks = Tensor();
    list.push_back({queries, keys, std::move(*options)});
  };
  const bool by_order = shape_.window == 0 && shape_.dropout == 0 && !mb.batch.first_keys.defined();
  if (part == Part::kAll && by_order && cut_.chunks() == 2) {
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
    for (int b = 0; b < cut_.chunks(); ++b) {
      if (part == Part::kAll || (a == b) == (part == Part::kWithinChunks)) {
        add(stretch_of(cut_, me, a), stretch_of(cut_, source, b));
      }
    }
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
    for (const Block& block : blocks(lane, mb, heads, neighbour(-step))) {
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

// Sums in the accumulator type: of this rank's queries, and of the keys and values of one rank.
struct RingAttention::Gradients {
  Tensor queries, keys_values;
  std::vector<Tensor> sinks;  // by block
};

// Adds what `blocks` of this rank's queries and of `keys` (with their values) give.
void RingAttention::add(Lane& lane, const Saved& saved, const Tensor& dout, const Tensor& keys,
                        const std::vector<Block>& blocks, Gradients& sums) const {
  const std::int64_t rows = cut_.rows();
  for (const auto& [query_rows, key_rows, options] : blocks) {
    const Tensor q = query_rows.of(saved.q), k = key_rows.of(keys.slice(0, rows)),
                 v = key_rows.of(keys.slice(rows, rows));
    const Tensor dq = lane.alloc(q.dtype(), q.shape(), "attention gradient"),
                 dk = lane.alloc(k.dtype(), k.shape(), "attention gradient"),
                 dv = lane.alloc(k.dtype(), k.shape(), "attention gradient");
    const ops::AttentionResult result{query_rows.of(saved.out), statistics_of(lane, saved.lse, query_rows)};
    const Tensor dsinks = sink_gradient(lane, options);
    ops::attention_backward(lane, query_rows.of(dout), q, k, v, result, options, dq, dk, dv, dsinks);
    if (dsinks.defined()) sums.sinks.push_back(dsinks);
    ops::add_in_place(lane, query_rows.of(sums.queries), dq);
    ops::add_in_place(lane, key_rows.of(sums.keys_values.slice(0, rows)), dk);
    ops::add_in_place(lane, key_rows.of(sums.keys_values.slice(rows, rows)), dv);
  }
}

void RingAttention::backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk,
                             const Tensor& dv, Microbatch& mb) const {
  const Saved saved = mb.saved.pop<Saved>();
  const std::int64_t rows = cut_.rows(), heads = saved.q.columns() / shape_.head_dim;
  const DType type = saved.q.dtype(), wide = accumulator_of(type);
  const Tensor own_keys = packed_keys_values(lane, saved.k, saved.v);
  const auto zeros = [&](const Tensor& like) {
    const Tensor sum = lane.alloc(wide, like.shape(), "attention gradient");
    ops::fill(lane, sum, 0);
    return sum;
  };
  Gradients own{zeros(saved.q), zeros(own_keys), {}};
  const bool halves = cp_.size() > 1 && cut_.chunks() == 2;
  Tensor here = own_keys;
  Moving gradients;  // of the keys that are here, from the rank that had them before
  for (int step = 0; step < cp_.size(); ++step) {
    Moving moving;
    if (step + 1 < cp_.size()) {
      const Tensor next = lane.alloc(type, here.shape(), "keys and values");
      moving = cp_.send_receive(lane, {{neighbour(1), here}}, {{neighbour(-1), next}});
    }
    if (step == 0) {
      add(lane, saved, dout, here,
          blocks(lane, mb, heads, cp_.rank(), halves ? Part::kAcrossChunks : Part::kAll), own);
    } else {
      Gradients sums{own.queries, zeros(here), {}};
      add(lane, saved, dout, here, blocks(lane, mb, heads, neighbour(-step)), sums);
      if (step > 1) ops::add_in_place(lane, sums.keys_values, gradients.wait(lane).front());
      const Tensor next = lane.alloc(wide, here.shape(), "attention gradient");
      gradients = cp_.send_receive(lane, {{neighbour(1), sums.keys_values}}, {{neighbour(-1), next}});
    }
    if (step + 1 < cp_.size()) here = moving.wait(lane).front();
  }
  if (halves) add(lane, saved, dout, own_keys, blocks(lane, mb, heads, cp_.rank(), Part::kWithinChunks), own);
  if (cp_.size() > 1) ops::add_in_place(lane, own.keys_values, gradients.wait(lane).front());
  contribute_sinks(lane, shape_, own.sinks);
  ops::copy(lane, own.queries, dq);
  ops::copy(lane, own.keys_values.slice(0, rows), dk);
  ops::copy(lane, own.keys_values.slice(rows, rows), dv);
}

}  // namespace weft::nn
