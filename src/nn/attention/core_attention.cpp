#include "nn/attention/core_attention.hpp"

#include "ops/elementwise.hpp"

namespace weft::nn {

ops::AttentionOptions attention_options(Lane& lane, const CoreAttentionShape& shape, const Microbatch& mb,
                                        std::int64_t heads) {
  Tensor sinks;
  if (shape.sinks != nullptr) {
    const Tensor& all = shape.sinks->weight();
    sinks = lane.alloc(accumulator_of(all.dtype()), {heads}, "attention sinks");
    ops::copy(lane, all.slice(shape.first_sink, heads), sinks);
  }
  return {.head_dim = shape.head_dim,
          .scale = shape.scale,
          .window = shape.window,
          .first_keys = mb.batch.first_keys,
          .soft_cap = shape.soft_cap,
          .sinks = std::move(sinks),
          .dropout = shape.dropout,
          .dropout_key = mb.dropout_key.with(shape.site),
          .sample_ids = mb.batch.sample_ids,
          .first_head = shape.first_head,
          .deterministic = shape.deterministic};
}

Tensor sink_gradient(Lane& lane, const ops::AttentionOptions& options) {
  if (!options.sinks.defined()) return {};
  return lane.alloc(options.sinks.dtype(), options.sinks.shape(), "gradient of sinks");
}

void contribute_sinks(Lane& lane, const CoreAttentionShape& shape, const std::vector<Tensor>& gradients) {
  if (shape.sinks == nullptr) return;
  shape.sinks->contribute([&](const Tensor& gradient, float beta) {
    beta == 0 ? ops::fill(lane, gradient, 0) : ops::scale_in_place(lane, gradient, beta);
    for (const Tensor& g : gradients) {
      if (g.defined()) ops::add_in_place(lane, gradient.slice(shape.first_sink, g.elems()), g);
    }
  });
}

Tensor CausalAttention::forward(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                                Microbatch& mb) const {
  ops::AttentionResult result = ops::attention(lane, q, k, v, options(lane, q, mb));
  Tensor out = result.out;
  mb.saved.push(Saved{q, k, v, std::move(result)});
  return out;
}

void CausalAttention::backward(Lane& lane, const Tensor& dout, const Tensor& dq, const Tensor& dk,
                               const Tensor& dv, Microbatch& mb) const {
  const auto [q, k, v, result] = mb.saved.pop<Saved>();
  const ops::AttentionOptions o = options(lane, q, mb);
  const Tensor dsinks = sink_gradient(lane, o);
  ops::attention_backward(lane, dout, q, k, v, result, o, dq, dk, dv, dsinks);
  contribute_sinks(lane, shape_, {dsinks});
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
  ops::AttentionOptions o = attention_options(lane, shape_, mb, q.columns() / shape_.head_dim);
  o.query_offset = seen;
  o.recurs = false;  // every position has another number of keys
  return ops::attention(lane, q, keys.slice(0, seen + k.dim(0)), values.slice(0, seen + v.dim(0)), o).out;
}

void CachedAttention::backward(Lane&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                               Microbatch&) const {
  WEFT_CHECK(false, "attention with a key/value cache is for generation; it has no backward");
}

}  // namespace weft::nn
