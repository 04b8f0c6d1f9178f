#include "train/options.hpp"

namespace weft {

void add_latent_options(OptionSet& options, LatentConfig& latent) {
  constexpr Integers kSize{.low = 1};
  options
      .flag("multi-latent-attention", latent.enabled,
            "keys and values of a small latent vector (DeepSeek), always with norms of the latents")
      .also({"mla"});
  options.integer("q-lora-rank", latent.q_lora_rank, {.low = 0},
                  "latent attention: size of a latent for queries too; 0: none");
  options.integer("kv-lora-rank", latent.kv_lora_rank, kSize, "latent attention: size of the latent");
  options
      .integer("qk-head-dim", latent.qk_head_dim, kSize,
               "latent attention: channels of a head of queries and keys without positions")
      .also({"qk-nope-head-dim"});
  options
      .integer("qk-pos-emb-head-dim", latent.qk_pos_emb_head_dim, kSize,
               "latent attention: channels of a head that are rotated, with one key for all heads")
      .also({"qk-rope-head-dim"});
  options.integer("v-head-dim", latent.v_head_dim, kSize, "latent attention: channels of a head of values");
}

}  // namespace weft
