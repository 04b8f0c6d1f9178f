#include "train/options.hpp"

namespace weft {

void add_moe_options(OptionSet& options, ModelConfig& m) {
  MoeConfig& c = m.moe;
  options.topic("experts");
  options.integer("num-experts", c.num_experts, {.low = 0, .high = 1 << 16}, "experts of a layer; 0: none")
      .also({"moe-num-experts", "num-local-experts", "n-routed-experts"});
  options.text(
      "moe-layer-freq", c.layer_freq, "N|LIST",
      "layers that have experts: every N-th from the first on, or 1 and 0 for each, like [0]*1+[1]*3");
  options.integer("moe-ffn-hidden-size", c.ffn_hidden_size, {.low = 1}, "inner width of an expert")
      .also({"moe-intermediate-size"})
      .otherwise("as --ffn-hidden-size");
  options.integer("moe-router-topk", c.topk, {.low = 1}, "experts that a token goes to")
      .also({"num-experts-per-tok", "moe-topk", "top-k"});
  options.choice("moe-router-score-function", c.score_function,
                 {{"softmax", RouterScoreFunction::kSoftmax}, {"sigmoid", RouterScoreFunction::kSigmoid}},
                 "scores from router logits");
  options.flag("moe-router-pre-softmax", c.pre_softmax,
               "softmax over all experts before the choice, in place of over the chosen ones");
  options
      .real("moe-router-topk-scaling-factor", c.scaling_factor, Reals::positive(),
            "the weights of the chosen experts are multiplied by it")
      .also({"routed-scaling-factor"});
  options.integer("moe-router-num-groups", c.num_groups, {.low = 0},
                  "experts in groups, of which --moe-router-group-topk are open to a token; 0: none");
  options.integer("moe-router-group-topk", c.group_topk, {.low = 0}, "groups open to a token");
  options.flag("moe-router-enable-expert-bias", c.expert_bias,
               "a bias for the choice alone, moved after each step towards equal loads (sigmoid scores)");
  options.real("moe-router-bias-update-rate", c.bias_update_rate, Reals::non_negative(), "how far");
  options.choice("moe-router-dtype", c.router_dtype,
                 {{"fp32", RouterDtype::kFp32}, {"fp64", RouterDtype::kFp64}},
                 "of router logits and weights");
  options.choice("moe-router-load-balancing-type", c.load_balancing,
                 {{"aux_loss", LoadBalancing::kAuxLoss},
                  {"seq_aux_loss", LoadBalancing::kSequenceAuxLoss},
                  {"none", LoadBalancing::kNone}},
                 "loss that balances experts: over a microbatch, or over each sequence");
  options.real("moe-aux-loss-coeff", c.aux_loss_coeff, Reals::non_negative(), "its coefficient; 0: none");
  options.real("moe-z-loss-coeff", c.z_loss_coeff, Reals::non_negative(),
               "coefficient of the mean square of the logits' logsumexp; 0: none");
  options.real("moe-expert-capacity-factor", c.expert_capacity_factor, Reals::non_negative(),
               "an expert takes at most this times an even share of a microbatch's tokens; 0: all of them");
  options.choice("moe-token-drop-policy", c.token_drop_policy,
                 {{"probs", TokenDropPolicy::kProbabilities}, {"position", TokenDropPolicy::kPosition}},
                 "which tokens a full expert leaves out: those of least weight, or the last");
  options.flag("moe-pad-expert-input-to-capacity", c.pad_to_capacity,
               "every expert computes as many rows as its capacity");
  options.integer("moe-shared-expert-intermediate-size", c.shared_expert_size, {.low = 0},
                  "inner width of an expert that all tokens go through; 0: none");
  options.choice("moe-token-dispatcher-type", c.dispatcher,
                 {{"alltoall", TokenDispatcher::kAllToAll}, {"allgather", TokenDispatcher::kAllGather}},
                 "how tokens reach experts of other ranks; never changes a number beyond rounding");
  options.shorthand("moe-grouped-gemm", {}, {},
                    "accepted for Megatron's scripts: experts always run as grouped products");
  options.shorthand("moe-shared-expert-overlap", {}, {},
                    "accepted for Megatron's scripts: a shared expert always runs under the exchange");
}

}  // namespace weft
