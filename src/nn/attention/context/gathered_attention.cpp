#include "nn/attention/context/gathered_attention.hpp"

#include <algorithm>

#include "ops/elementwise.hpp"

namespace weft::nn {

GatheredAttention::GatheredAttention(const CoreAttentionShape& shape, Communicator& cp,
                                     const SequenceCut& cut)
    : shape_(shape), cp_(cp), cut_(cut) {
  WEFT_CHECK(cut.ranks == cp.size(), "attention over {} ranks and a sequence cut for {}", cp.size(),
             cut.ranks);
}

GatheredAttention::Whole GatheredAttention::gather(Lane& lane, const Tensor& k, const Tensor& v) const {
  const Tensor both = cp_.all_gather(lane, packed_keys_values(lane, k, v)).wait(lane);
  const Shape whole{cut_.length(), k.dim(1), k.columns()};
  const Whole result{lane.alloc(k.dtype(), whole, "all keys"), lane.alloc(k.dtype(), whole, "all values")};
  const std::int64_t rows = cut_.rows();
  for (int rank = 0; rank < cp_.size(); ++rank) {
    for (int i = 0; i < cut_.chunks(); ++i) {
      const Stretch chunk = stretch_of(cut_, rank, i);
      const Tensor theirs = both.slice(2 * rows * rank, 2 * rows);
      ops::copy(lane, chunk.of(theirs.slice(0, rows)), result.k.slice(chunk.position, chunk.rows));
      ops::copy(lane, chunk.of(theirs.slice(rows, rows)), result.v.slice(chunk.position, chunk.rows));
    }
  }
  return result;
}

Stretch GatheredAttention::keys_of(const Stretch& queries) const {
  const std::int64_t first =
      shape_.window > 0 ? std::max<std::int64_t>(queries.position - shape_.window + 1, 0) : 0;
  return {first, first, queries.position + queries.rows - first};
}

Tensor GatheredAttention::forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                                  Microbatch& mb) const {
  WEFT_CHECK(q.dim(0) == cut_.rows(), "attention over {} rows, expected {}", q.dim(0), cut_.rows());
  Saved saved{q, k, v, lane.alloc(q.dtype(), q.shape(), "attention result"), {}};
  const Whole all = gather(lane, k, v);
  const std::int64_t heads = q.columns() / shape_.head_dim;
  for (int i = 0; i < cut_.chunks(); ++i) {
    const Stretch queries = stretch_of(cut_, cp_.rank(), i), keys = keys_of(queries);
    const ops::AttentionResult result =
        ops::attention(lane, queries.of(q), keys.of(all.k), keys.of(all.v),
                       attention_between(lane, shape_, mb, heads, queries, keys).value());
    ops::copy(lane, result.out, queries.of(saved.out));
    saved.lse.push_back(result.lse);
  }
  Tensor out = saved.out;
  mb.saved.push(std::move(saved));
  return out;
}

void GatheredAttention::backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk,
                                 const Tensor& dv, Microbatch& mb) const {
  const Saved saved = mb.saved.pop<Saved>();
  const std::int64_t rows = cut_.rows();
  const DType type = dout.dtype(), wide = accumulator_of(type);
  // Of all ranks' keys and values, in the order in which they were gathered.
  const Tensor sums =
      lane.alloc(wide, {2 * cut_.length(), saved.k.dim(1), saved.k.columns()}, "attention gradient");
  ops::fill(lane, sums, 0);
  std::vector<Tensor> dsinks;
  {
    const Whole all = gather(lane, saved.k, saved.v);
    const std::int64_t heads = saved.q.columns() / shape_.head_dim;
    for (int i = 0; i < cut_.chunks(); ++i) {
      const Stretch queries = stretch_of(cut_, cp_.rank(), i), keys = keys_of(queries);
      const Tensor k = keys.of(all.k), v = keys.of(all.v);
      const Tensor dk_part = lane.alloc(type, k.shape(), "attention gradient"),
                   dv_part = lane.alloc(type, v.shape(), "attention gradient");
      const ops::AttentionOptions options = attention_between(lane, shape_, mb, heads, queries, keys).value();
      dsinks.push_back(sink_gradient(lane, options));
      ops::attention_backward(lane, queries.of(dout), queries.of(saved.q), k, v,
                              {queries.of(saved.out), saved.lse[static_cast<std::size_t>(i)]}, options,
                              queries.of(dq), dk_part, dv_part, dsinks.back());
      for (std::int64_t at = keys.row; at < keys.row + keys.rows;) {
        const std::int64_t number = at / cut_.chunk, in_chunk = at % cut_.chunk;
        const std::int64_t count = std::min(cut_.chunk - in_chunk, keys.row + keys.rows - at);
        const SequenceCut::Place place = cut_.place(static_cast<int>(number));
        const std::int64_t to = 2 * rows * place.rank + place.index * cut_.chunk + in_chunk;
        ops::add_in_place(lane, sums.slice(to, count), dk_part.slice(at - keys.row, count));
        ops::add_in_place(lane, sums.slice(to + rows, count), dv_part.slice(at - keys.row, count));
        at += count;
      }
    }
  }
  contribute_sinks(lane, shape_, dsinks);
  const Tensor mine = cp_.reduce_scatter(lane, sums).wait(lane);
  ops::copy(lane, mine.slice(0, rows), dk);
  ops::copy(lane, mine.slice(rows, rows), dv);
}

}  // namespace weft::nn
