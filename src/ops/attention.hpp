// Scaled dot-product attention, tiled with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022):
// memory is linear in the sequence length. Grouped queries: query head i reads key/value head i / (q_heads /
// kv_heads).
#pragma once

#include "core/lane.hpp"
#include "core/rng.hpp"

namespace weft::ops {

struct AttentionOptions {
  int head_dim = 0;
  double scale = 1;               // on q·k
  bool causal = true;             // query i sees keys 0 .. i + query_offset
  std::int64_t query_offset = 0;  // keys before the first query (a KV cache)
  // Query i stands at position i + query_offset. With a window it sees the last `window` keys up to there
  // (its own one included); 0: all. Needs causal.
  std::int64_t window = 0;
  // Position of key 0 in the whole sequence, where the keys are a part of it (context parallel); that of
  // query i is first_key + query_offset + i.
  std::int64_t first_key = 0;
  // [b, s] i32, may be strided: position of the first key that a query sees, where documents are packed into
  // one sequence. Undefined: all.
  Tensor first_keys;
  double soft_cap =
      0;  // scores become soft_cap · tanh(score / soft_cap) before they are masked (Gemma 2); 0: no
  // [q_heads] f32 (f64 for f64): for each head one more score in the softmax's denominator, with no value
  // (gpt-oss). The log-sum-exp includes it.
  Tensor sinks;
  // Dropout of the probabilities: element (sample, head, query, key) is kept with probability 1 − dropout and
  // scaled by 1 / (1 − dropout). Key: of (seed, step, layer, site). Indices are global, so that masks do not
  // depend on layout: Philox counter = (key / 4 | query << 32, sample << 20 | head), word = key % 4, kept
  // when uniform(word) ≥ dropout; query and key are positions in the whole sequence, head = first_head +
  // index.
  double dropout = 0;
  RandomKey dropout_key;
  Tensor sample_ids;            // [b] i64: global sample numbers; needed when dropout > 0
  std::int64_t first_head = 0;  // global number of this rank's first query head
  // Backward on a GPU by cuDNN: dq summed in a fixed order, so that repeating it gives the same bits. Costs
  // time and 2 · b · q_heads · s · sk bytes of scratch. All other kernels do so anyway.
  bool deterministic = false;
  // Calls of these shapes will come again and again. False on a GPU: no library is asked, which would build a
  // plan for each of them.
  bool recurs = true;
};

struct AttentionResult {
  Tensor out;  // [s, b, q_heads · head_dim]
  Tensor lse;  // [b, q_heads, s] log-sum-exp of the scaled scores; f32 (f64 for f64)
};

// q [s, b, q_heads · head_dim], k and v [sk, b, kv_heads · head_dim]; all may be strided views of packed qkv.
AttentionResult attention(Lane& lane, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options);
// Writes dq, dk, dv (shapes of q, k, v; may be strided views of one packed tensor) and, where there are
// sinks, their gradient.
void attention_backward(Lane& lane, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionResult& forward, const AttentionOptions& options, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Tensor& dsinks = {});

}  // namespace weft::ops
