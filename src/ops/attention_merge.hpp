// Attention of the same queries to two sets of keys, put together: what sequences cut over ranks need.
#pragma once

#include "ops/attention.hpp"

namespace weft::ops {

// `into` := what attention to its keys and to those of `part` together gives, from the log-sum-exps of both:
// out = Σ exp(lse_i − lse) out_i, lse = log Σ exp(lse_i). into.out [s, b, q_heads · head_dim] f32 (f64 for
// f64), part.out the same shape in any floating dtype; both lse [b, q_heads, s], into's may be strided. A row
// that has seen no key has lse −∞.
void merge_attention(Lane& lane, const AttentionResult& into, const AttentionResult& part);

}  // namespace weft::ops
