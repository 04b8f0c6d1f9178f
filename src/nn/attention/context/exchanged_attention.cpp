#include "nn/attention/context/exchanged_attention.hpp"

#include <vector>

#include "ops/elementwise.hpp"

namespace weft::nn {

ExchangedAttention::ExchangedAttention(int head_dim, Communicator& group, const SequenceCut& cut,
                                       std::unique_ptr<CoreAttention> inner)
    : head_dim_(head_dim), group_(group), cut_(cut), inner_(std::move(inner)) {
  WEFT_CHECK(cut.ranks == group.size(), "an exchange between {} ranks and a sequence cut for {}",
             group.size(), cut.ranks);
}

ExchangedAttention::Columns ExchangedAttention::columns_of(std::int64_t width, int r) const {
  const std::int64_t heads = width / head_dim_, ranks = group_.size();
  if (heads % ranks == 0) return {r * (width / ranks), width / ranks};
  WEFT_CHECK(ranks % heads == 0, "{} heads over {} ranks", heads, ranks);
  return {r / (ranks / heads) * head_dim_, head_dim_};
}

Tensor ExchangedAttention::exchange(Lane& lane, const Tensor& blocks) const {
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(group_.size()), cut_.rows());
  const Tensor received = lane.alloc(blocks.dtype(), blocks.shape(), "exchanged heads");
  return group_.all_to_all_into(lane, blocks, rows, received, rows).wait(lane);
}

Tensor ExchangedAttention::reordered(Lane& lane, const Tensor& x, bool back) const {
  Tensor y = lane.alloc(x.dtype(), x.shape(), "exchanged heads");
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (int i = 0; i < cut_.chunks(); ++i) {
      const Stretch chunk = stretch_of(cut_, rank, i);
      const std::int64_t by_rank = rank * cut_.rows() + chunk.row;
      ops::copy(lane, x.slice(back ? chunk.position : by_rank, chunk.rows),
                y.slice(back ? by_rank : chunk.position, chunk.rows));
    }
  }
  return y;
}

Tensor ExchangedAttention::to_heads(Lane& lane, const Tensor& blocks) const {
  const Tensor received = exchange(lane, blocks);
  return cut_.chunks() == 1 ? received : reordered(lane, received, false);
}

Tensor ExchangedAttention::to_positions(Lane& lane, const Tensor& whole) const {
  return exchange(lane, cut_.chunks() == 1 ? whole : reordered(lane, whole, true));
}

Tensor ExchangedAttention::forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                                   Microbatch& mb) const {
  const std::int64_t rows = cut_.rows(), batch = q.dim(1);
  WEFT_CHECK(q.dim(0) == rows, "attention over {} rows, expected {}", q.dim(0), rows);
  const std::int64_t q_width = columns_of(q.columns(), 0).count, kv_width = columns_of(k.columns(), 0).count;
  const Tensor whole = [&] {
    const Tensor blocks =
        lane.alloc(q.dtype(), {cut_.length(), batch, q_width + 2 * kv_width}, "exchanged heads");
    for (int r = 0; r < group_.size(); ++r) {
      const Tensor to = blocks.slice(r * rows, rows);
      std::int64_t at = 0;
      for (const Tensor* x : {&q, &k, &v}) {
        const Columns columns = columns_of(x->columns(), r);
        ops::copy(lane, x->slice_columns(columns.begin, columns.count), to.slice_columns(at, columns.count));
        at += columns.count;
      }
    }
    return to_heads(lane, blocks);
  }();
  const Tensor heads =
      inner_->forward(lane, whole.slice_columns(0, q_width), whole.slice_columns(q_width, kv_width),
                      whole.slice_columns(q_width + kv_width, kv_width), mb);
  mb.saved.push(Saved{q_width, kv_width});
  const Tensor blocks = to_positions(lane, heads);
  Tensor out = lane.alloc(q.dtype(), q.shape(), "attention result");
  for (int r = 0; r < group_.size(); ++r) {
    ops::copy(lane, blocks.slice(r * rows, rows), out.slice_columns(r * q_width, q_width));
  }
  return out;
}

void ExchangedAttention::backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk,
                                  const Tensor& dv, Microbatch& mb) const {
  const auto [q_width, kv_width] = mb.saved.pop<Saved>();
  const std::int64_t rows = cut_.rows(), batch = dout.dim(1);
  Tensor blocks;
  {
    Tensor heads = lane.alloc(dout.dtype(), {cut_.length(), batch, q_width}, "exchanged heads");
    for (int r = 0; r < group_.size(); ++r) {
      ops::copy(lane, dout.slice_columns(r * q_width, q_width), heads.slice(r * rows, rows));
    }
    heads = to_heads(lane, heads);
    const Tensor whole =
        lane.alloc(dout.dtype(), {cut_.length(), batch, q_width + 2 * kv_width}, "exchanged heads");
    inner_->backward(lane, heads, whole.slice_columns(0, q_width), whole.slice_columns(q_width, kv_width),
                     whole.slice_columns(q_width + kv_width, kv_width), mb);
    blocks = to_positions(lane, whole);
  }
  // Ranks that share a head of keys and values each have a part of its gradient.
  const bool shared = kv_width * group_.size() > dk.columns();
  const auto put = [&](std::int64_t at, const Tensor& to, bool add) {
    const Tensor sum = add ? lane.alloc(accumulator_of(to.dtype()), to.shape(), "attention gradient") : to;
    if (add) ops::fill(lane, sum, 0);
    for (int r = 0; r < group_.size(); ++r) {
      const Columns columns = columns_of(to.columns(), r);
      const Tensor from = blocks.slice(r * rows, rows).slice_columns(at, columns.count);
      const Tensor into = sum.slice_columns(columns.begin, columns.count);
      add ? ops::add_in_place(lane, into, from) : ops::copy(lane, from, into);
    }
    if (add) ops::copy(lane, sum, to);
  };
  put(0, dq, false);
  put(q_width, dk, shared);
  put(q_width + kv_width, dv, shared);
}

}  // namespace weft::nn
