// MoeConfig: the numbers of a mixture of experts under Megatron's option names. A part of ModelConfig.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

enum class RouterScoreFunction { kSoftmax, kSigmoid };
enum class RouterDtype { kFp32, kFp64 };
enum class LoadBalancing { kNone, kAuxLoss, kSequenceAuxLoss };
enum class TokenDropPolicy { kProbabilities, kPosition };
enum class TokenDispatcher { kAllToAll, kAllGather };

struct MoeConfig {
  std::int64_t num_experts = 0;  // of a layer; 0: every feed-forward network is dense
  // Which layers have experts: N, every N-th from the first on; or a list of a 1 or 0 for each layer, as
  // Megatron writes them: [0]*3+[1]*58.
  std::string layer_freq = "1";
  std::int64_t ffn_hidden_size = 0;  // of an expert; 0: ffn_hidden_size
  std::int64_t topk = 2;
  RouterScoreFunction score_function = RouterScoreFunction::kSoftmax;
  bool pre_softmax = false;   // softmax over all experts before the choice; else over the chosen ones
  double scaling_factor = 1;  // on the weights of the chosen
  std::int64_t num_groups = 0, group_topk = 0;
  bool expert_bias = false;  // on scores for the choice alone, moved after each step towards equal loads
  double bias_update_rate = 1e-3;
  RouterDtype router_dtype = RouterDtype::kFp32;
  LoadBalancing load_balancing = LoadBalancing::kAuxLoss;
  double aux_loss_coeff = 0;
  double z_loss_coeff = 0;
  double expert_capacity_factor = 0;  // 0: no expert drops a token
  TokenDropPolicy token_drop_policy = TokenDropPolicy::kProbabilities;
  bool pad_to_capacity = false;
  std::int64_t shared_expert_size = 0;  // inner width; 0: none
  TokenDispatcher dispatcher = TokenDispatcher::kAllToAll;

  bool operator==(const MoeConfig&) const = default;
};

// What layer_freq says of `layers` layers, or an error that names the option. Without experts: no layer.
std::vector<bool> expert_layers(const MoeConfig& config, std::int64_t layers);
// layer_freq for these layers: "1", or as short a list as there is.
std::string layer_freq_of(const std::vector<bool>& layers);
// What is wrong with the numbers, named by Megatron's options.
std::vector<std::string> problems_of(const MoeConfig& config, std::int64_t layers);

}  // namespace weft
