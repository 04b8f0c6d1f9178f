// The numbers of multi-head latent attention under Megatron's option names
// (nn/attention/latent_attention.hpp).
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft {

struct LatentConfig {
  bool enabled = false;            // --multi-latent-attention
  std::int64_t q_lora_rank = 0;    // of the matrix that makes queries; 0: a plain one
  std::int64_t kv_lora_rank = 32;  // size of the latent of keys and values
  // Channels of a head's queries and keys that are not rotated, that are, and of its values.
  std::int64_t qk_head_dim = 128, qk_pos_emb_head_dim = 64, v_head_dim = 128;

  std::int64_t query_dim() const { return qk_head_dim + qk_pos_emb_head_dim; }
  // Of a head in core attention, where queries, keys and values have one size.
  std::int64_t core_dim() const { return std::max(query_dim(), v_head_dim); }
  bool operator==(const LatentConfig&) const = default;
};

}  // namespace weft
