#include "nn/attention/core_attention.hpp"

#include "ops/elementwise.hpp"

namespace weft::nn {

ops::AttentionOptions attention_options(const CoreAttentionShape& shape, const Microbatch& mb) {
  return {.head_dim = shape.head_dim,
          .scale = shape.scale,
          .window = shape.window,
          .first_keys = mb.batch.first_keys,
          .dropout = shape.dropout,
          .dropout_key = mb.dropout_key.with(shape.site),
          .sample_ids = mb.batch.sample_ids,
          .first_head = shape.first_head,
          .deterministic = shape.deterministic};
}

Tensor CausalAttention::forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                                Microbatch& mb) const {
  ops::AttentionResult result = ops::attention(lane, q, k, v, attention_options(shape_, mb));
  Tensor out = result.out;
  mb.saved.push(Saved{q, k, v, std::move(result)});
  return out;
}

void CausalAttention::backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk,
                               const Tensor& dv, Microbatch& mb) const {
  const auto [q, k, v, result] = mb.saved.pop<Saved>();
  ops::attention_backward(lane, dout, q, k, v, result, attention_options(shape_, mb), dq, dk, dv);
}

Tensor CachedAttention::forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                                Microbatch& mb) const {
  WEFT_CHECK(mb.cache != nullptr && layer_ < mb.cache->keys.size(), "no key/value cache for layer {}",
             layer_);
  const std::int64_t seen = mb.batch.first_position;
  const Tensor& keys = mb.cache->keys[layer_];
  const Tensor& values = mb.cache->values[layer_];
  ops::copy(lane, k, keys.slice(seen, k.dim(0)));
  ops::copy(lane, v, values.slice(seen, v.dim(0)));
  ops::AttentionOptions o = attention_options(shape_, mb);
  o.query_offset = seen;
  o.recurs = false;  // every position has another number of keys
  return ops::attention(lane, q, keys.slice(0, seen + k.dim(0)), values.slice(0, seen + v.dim(0)), o).out;
}

void CachedAttention::backward(Lane&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                               Microbatch&) const {
  WEFT_CHECK(false, "attention with a key/value cache is for generation; it has no backward");
}

}  // namespace weft::nn
