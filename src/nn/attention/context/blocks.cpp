#include "nn/attention/context/blocks.hpp"

#include "ops/elementwise.hpp"

namespace weft::nn {

std::optional<ops::AttentionOptions> attention_between(Lane& lane, const CoreAttentionShape& shape,
                                                       const Microbatch& mb, std::int64_t heads,
                                                       const Stretch& queries, const Stretch& keys) {
  const std::int64_t distance = queries.position - keys.position;
  if (distance + queries.rows <= 0) return std::nullopt;
  if (shape.window > 0 && distance - (keys.rows - 1) >= shape.window) return std::nullopt;
  ops::AttentionOptions options = attention_options(lane, shape, mb, heads);
  options.causal = shape.window > 0 || distance < keys.rows - 1;
  options.query_offset = distance;
  options.first_key = keys.position;
  if (options.first_keys.defined()) {
    options.first_keys = options.first_keys.slice_columns(queries.position, queries.rows);
  }
  return options;
}

Tensor packed_keys_values(Lane& lane, const Tensor& k, const Tensor& v) {
  const std::int64_t rows = k.dim(0);
  Tensor both = lane.alloc(k.dtype(), {2 * rows, k.dim(1), k.columns()}, "keys and values");
  ops::copy(lane, k, both.slice(0, rows));
  ops::copy(lane, v, both.slice(rows, rows));
  return both;
}

}  // namespace weft::nn
