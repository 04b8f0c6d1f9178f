// ModelSpec: which part goes into which slot. Plain values, comparable and printable; build() turns them into
// objects. A different model, precision or purpose is another value here, never an `if` inside a layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/config.hpp"
#include "ops/activation.hpp"
#include "ops/moe.hpp"

namespace weft {

struct NormSpec {
  enum class Kind { kLayerNorm, kRmsNorm } kind = Kind::kLayerNorm;
  double eps = 1e-5;
  bool operator==(const NormSpec&) const = default;
};

struct LinearSpec {
  bool bias = false;
  double init_std = 0.02;
  bool operator==(const LinearSpec&) const = default;
};

struct RotarySpec {
  double base = 10000;
  std::int64_t dim = 0;  // rotated channels of each head
  bool interleaved = false;
  RopeScaling scaling;
  bool operator==(const RotarySpec&) const = default;
};

// How attention reaches the rest of a sequence that is cut over ranks (Megatron's cp_comm_type).
enum class ContextMethod {
  kP2p,        // keys and values go round in a ring
  kAllGather,  // each rank gathers them all
  kA2a,        // ranks exchange positions for heads (Ulysses)
  kA2aP2p      // heads in groups of neighbours, a ring over the groups
};

struct CoreAttentionSpec {
  enum class Kind { kCausal, kCached } kind = Kind::kCausal;
  ContextMethod context = ContextMethod::kP2p;  // where sequences are cut over ranks
  double dropout = 0;
  std::int64_t window = 0;     // keys that a query sees, its own included; 0: all
  double soft_cap = 0;         // see ops::AttentionOptions
  bool sinks = false;          // a learned one for each query head (see ops::AttentionOptions)
  bool deterministic = false;  // the same bits every time, on GPUs for more time and memory
  bool operator==(const CoreAttentionSpec&) const = default;
};

struct SelfAttentionSpec {
  std::int64_t heads = 0, groups = 0, head_dim = 0;
  LinearSpec qkv;
  std::optional<NormSpec> qk_norm;  // over each head of queries and keys, before the rotation
  std::optional<RotarySpec> rotary;
  CoreAttentionSpec core_attention;
  LinearSpec proj;  // its bias is added by the attention_bda slot
  bool operator==(const SelfAttentionSpec&) const = default;
};

// See nn/attention/latent_attention.hpp.
struct LatentAttentionSpec {
  std::int64_t heads = 0;
  LatentConfig sizes;
  LinearSpec projections;  // down and up; none has a bias
  NormSpec norm;           // of the latents
  RotarySpec rotary;
  CoreAttentionSpec core_attention;
  LinearSpec proj;  // its bias is added by the attention_bda slot
  bool operator==(const LatentAttentionSpec&) const = default;
};

using AttentionSpec = std::variant<SelfAttentionSpec, LatentAttentionSpec>;

// What every kind of attention has.
CoreAttentionSpec& core_attention_of(AttentionSpec& spec);
const LinearSpec& proj_of(const AttentionSpec& spec);
std::optional<RotarySpec> rotary_of(const AttentionSpec& spec);
// Columns of the keys, and of the values, on one tensor-parallel rank.
std::int64_t key_columns(const AttentionSpec& spec, int tensor_parallel_size);

struct MlpSpec {
  std::int64_t ffn_hidden_size = 0;
  LinearSpec fc1;
  ops::Activation activation = ops::Activation::kGeluTanh;
  bool gated = false;
  LinearSpec fc2;  // its bias is added by the mlp_bda slot
  // fc2's input is not kept for its weight gradient, but made again along with the activation's derivative.
  bool activation_again = false;
  bool operator==(const MlpSpec&) const = default;
};

struct RouterSpec {
  ops::RouterOptions options;
  RouterDtype dtype = RouterDtype::kFp32;
  bool expert_bias = false;
  // Coefficients of the losses that balance experts (see nn/moe/router.hpp).
  double aux = 0, sequence_aux = 0, z = 0;
  double capacity_factor = 0;  // 0: no token is dropped
  bool drop_by_position = false, pad_to_capacity = false;
  double init_std = 0.02;
  bool operator==(const RouterSpec&) const = default;
};

struct MoeSpec {
  std::int64_t experts = 0;
  RouterSpec router;
  TokenDispatcher dispatcher = TokenDispatcher::kAllToAll;
  MlpSpec expert;  // each of them, without biases
  std::optional<MlpSpec> shared;
  bool operator==(const MoeSpec&) const = default;
};

struct BiasDropoutAddSpec {
  double dropout = 0;
  bool operator==(const BiasDropoutAddSpec&) const = default;
};

struct LayerSpec {
  NormSpec input_norm;
  AttentionSpec self_attention;
  BiasDropoutAddSpec attention_bda;
  NormSpec pre_mlp_norm;
  std::variant<MlpSpec, MoeSpec> mlp;
  BiasDropoutAddSpec mlp_bda;
  bool operator==(const LayerSpec&) const = default;
};

struct EmbeddingSpec {
  bool learned_positions = false;
  double dropout = 0;
  double init_std = 0.02;
  bool operator==(const EmbeddingSpec&) const = default;
};

struct OutputSpec {
  bool tied = false;
  double init_std = 0.02;
  double label_smoothing = 0;
  double z_loss = 0;
  // Of about this many tokens the logits exist at a time, and their gradients are taken at once (see
  // nn/fused_head.hpp); 0: of all, until backward. Where the vocabulary is cut over ranks it is as with 0.
  std::int64_t fused_rows = 0;
  bool operator==(const OutputSpec&) const = default;
};

// Activations that are not kept but made again before they are needed.
struct RecomputeSpec {
  enum class Kind {
    kNone,
    kUniform,    // groups of `layers` layers keep their first input
    kBlock,      // so does each of the first `layers` layers of a stage
    kSelective,  // the parts below, of every layer
  } kind = Kind::kNone;
  std::int64_t layers = 0;
  bool core_attention = false, mlp = false, norms = false;
  bool operator==(const RecomputeSpec&) const = default;
};

struct ModelSpec {
  std::int64_t hidden_size = 0;
  std::int64_t vocab_size = 0;            // unpadded
  std::int64_t vocab_divisible_by = 128;  // padded to a multiple of this × tp
  std::int64_t max_positions = 0;
  EmbeddingSpec embedding;
  std::vector<LayerSpec> layers;
  NormSpec final_norm;
  OutputSpec output;
  // Between tensor-parallel regions a rank has its part of the sequence only (Korthikanti et al. 2022).
  bool sequence_parallel = false;
  // Tensor-parallel linear layers communicate under their own products, in this many chunks; 1: after them.
  int tensor_parallel_chunks = 1;
  RecomputeSpec recompute;
  // Positions come with the data, one for each token; else a token's place is its position.
  bool document_positions = false;
  // Tensors that are not trained: patterns of canonical names, in which * stands for any characters and ? for
  // one.
  std::vector<std::string> freeze;
  // Of each layer that has some; 0: none has.
  std::int64_t experts() const;
  bool operator==(const ModelSpec&) const = default;
};

// Whether a pattern of spec.freeze matches this tensor.
bool is_frozen(const ModelSpec& spec, const std::string& tensor);

// One line per distinct part, equal layers counted once: what a run prints and a reader compares.
std::string to_string(const ModelSpec& spec);

// The `local` family: readable reference parts that run on every device.
ModelSpec local_spec(const ModelConfig& config);
// The `fused` family, for GPUs: parts that move fewer bytes and keep less. It computes the same.
ModelSpec fused_spec(const ModelConfig& config);
// The same as `local` without dropout: evaluation and scoring.
ModelSpec evaluation_spec(const ModelConfig& config);
// The same with a key/value cache in place of saved activations: generation.
ModelSpec inference_spec(const ModelConfig& config);

// How the experts of a layer are cut: ep ranks have equal shares of them, and each is cut over etp ranks.
struct ExpertSizes {
  int ep = 1, etp = 1;
};
// What is wrong with a spec for this many tensor-parallel ranks, each with the numbers and the fix; empty: it
// builds.
std::vector<std::string> validate(const ModelSpec& spec, int tensor_parallel_size,
                                  const ExpertSizes& experts);

}  // namespace weft
