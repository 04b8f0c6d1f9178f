#include "model/spec.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/check.hpp"

namespace weft {
namespace {

// The whole of `name`; every * is tried from the shortest on, and only the last one met is tried again.
bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, after = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++after;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

ops::RouterScore score_of(const MoeConfig& c) {
  if (c.score_function == RouterScoreFunction::kSigmoid) return ops::RouterScore::kSigmoid;
  return c.pre_softmax ? ops::RouterScore::kSoftmaxOverAll : ops::RouterScore::kSoftmax;
}

MoeSpec moe_spec(const ModelConfig& config, const MlpSpec& dense) {
  const MoeConfig& c = config.moe;
  MlpSpec expert = dense;
  expert.ffn_hidden_size = c.ffn_hidden_size;
  MoeSpec spec{.experts = c.num_experts,
               .router = {.options = {.topk = static_cast<int>(c.topk),
                                      .score = score_of(c),
                                      .groups = static_cast<int>(c.num_groups),
                                      .group_topk = static_cast<int>(c.group_topk),
                                      .scale = c.scaling_factor},
                          .dtype = c.router_dtype,
                          .expert_bias = c.expert_bias,
                          .z = c.z_loss_coeff,
                          .capacity_factor = c.expert_capacity_factor,
                          .drop_by_position = c.token_drop_policy == TokenDropPolicy::kPosition,
                          .pad_to_capacity = c.pad_to_capacity,
                          .init_std = config.init_method_std},
               .dispatcher = c.dispatcher,
               .expert = expert,
               .shared = std::nullopt};
  if (c.load_balancing == LoadBalancing::kAuxLoss) spec.router.aux = c.aux_loss_coeff;
  if (c.load_balancing == LoadBalancing::kSequenceAuxLoss) spec.router.sequence_aux = c.aux_loss_coeff;
  if (c.shared_expert_size > 0) {
    spec.shared = dense;
    spec.shared->ffn_hidden_size = c.shared_expert_size;
  }
  return spec;
}

AttentionSpec attention_spec(const ModelConfig& c, const NormSpec& norm, const LinearSpec& output) {
  const CoreAttentionSpec core{.dropout = c.attention_dropout, .window = c.sliding_window};
  RotarySpec rotary{c.rotary_base, c.latent.qk_pos_emb_head_dim, c.rotary_interleaved, c.rope_scaling};
  if (c.latent.enabled) {
    return LatentAttentionSpec{.heads = c.num_attention_heads,
                               .sizes = c.latent,
                               .projections = {false, c.init_method_std},
                               .norm = norm,
                               .rotary = rotary,
                               .core_attention = core,
                               .proj = output};
  }
  SelfAttentionSpec attention{.heads = c.num_attention_heads,
                              .groups = c.num_query_groups,
                              .head_dim = c.kv_channels,
                              .qkv = {c.add_bias_linear || c.add_qkv_bias, c.init_method_std},
                              .qk_norm = std::nullopt,
                              .rotary = std::nullopt,
                              .core_attention = core,
                              .proj = output};
  if (c.qk_layernorm) attention.qk_norm = norm;
  if (c.position_embedding == PositionEmbedding::kRope) {
    rotary.dim = static_cast<std::int64_t>(static_cast<double>(c.kv_channels) * c.rotary_percent);
    attention.rotary = rotary;
  }
  return attention;
}

LayerSpec layer_spec(const ModelConfig& c) {
  const NormSpec norm{
      c.normalization == Normalization::kRmsNorm ? NormSpec::Kind::kRmsNorm : NormSpec::Kind::kLayerNorm,
      c.norm_epsilon};
  const LinearSpec linear{c.add_bias_linear, c.init_method_std};
  // Output projections start smaller, so that the residual stream's variance does not grow with depth
  // (GPT-2).
  const LinearSpec output{c.add_bias_linear,
                          c.init_method_std / std::sqrt(2.0 * static_cast<double>(c.num_layers))};
  return {.input_norm = norm,
          .self_attention = attention_spec(c, norm, output),
          .attention_bda = {c.hidden_dropout},
          .pre_mlp_norm = norm,
          .mlp = MlpSpec{c.ffn_hidden_size, linear, c.activation, c.gated, output},
          .mlp_bda = {c.hidden_dropout}};
}

std::string describe(const NormSpec& norm) {
  return fmt::format("{} eps {:g}", norm.kind == NormSpec::Kind::kRmsNorm ? "RMSNorm" : "LayerNorm",
                     norm.eps);
}

std::string describe(const MlpSpec& mlp) {
  return fmt::format("    mlp             {}{} of {}{}\n", mlp.gated ? "gated " : "",
                     ops::name_of(mlp.activation), mlp.ffn_hidden_size, mlp.fc1.bias ? ", fc1 bias" : "");
}

std::string describe(const MoeSpec& moe) {
  const RouterSpec& r = moe.router;
  std::string text = fmt::format(
      "    router          top {} of {}{}{}{}{}{}{}\n", r.options.topk, moe.experts,
      r.options.score == ops::RouterScore::kSigmoid ? ", sigmoid" : ", softmax",
      r.options.groups > 0 ? fmt::format(", in {} of {} groups", r.options.group_topk, r.options.groups) : "",
      r.expert_bias ? ", expert bias" : "", r.aux > 0 ? fmt::format(", aux loss {:g}", r.aux) : "",
      r.sequence_aux > 0 ? fmt::format(", aux loss of sequences {:g}", r.sequence_aux) : "",
      r.z > 0 ? fmt::format(", z-loss {:g}", r.z) : "");
  if (r.capacity_factor > 0)
    text += fmt::format("      capacity      {:g} of an even share\n", r.capacity_factor);
  text += fmt::format("    experts         {} x {}{} of {}\n", moe.experts, moe.expert.gated ? "gated " : "",
                      ops::name_of(moe.expert.activation), moe.expert.ffn_hidden_size);
  if (moe.shared) text += fmt::format("    shared expert   of {}\n", moe.shared->ffn_hidden_size);
  return text;
}

bool output_bias(const LayerSpec& layer) {
  const auto* mlp = std::get_if<MlpSpec>(&layer.mlp);
  return mlp != nullptr && mlp->fc2.bias;
}

std::string describe(const CoreAttentionSpec& core) {
  return fmt::format("{}{}{}{}{}", core.window > 0 ? fmt::format(", window {}", core.window) : "",
                     core.soft_cap > 0 ? fmt::format(", soft cap {:g}", core.soft_cap) : "",
                     core.sinks ? ", sinks" : "",
                     core.kind == CoreAttentionSpec::Kind::kCached ? ", key/value cache" : "",
                     core.dropout > 0 ? fmt::format(", dropout {:g}", core.dropout) : "");
}

std::string describe(const SelfAttentionSpec& a) {
  std::string text = fmt::format("{} heads of {}, {} key/value groups{}{}\n", a.heads, a.head_dim, a.groups,
                                 a.qkv.bias ? ", qkv bias" : "", describe(a.core_attention));
  if (a.qk_norm) text += fmt::format("      q, k norms    {}\n", describe(*a.qk_norm));
  return text;
}

std::string describe(const LatentAttentionSpec& a) {
  const LatentConfig& l = a.sizes;
  return fmt::format(
      "latent, {} heads of {} + {} rotated, values of {}{}\n      latents       {} of keys and values{}, "
      "{}\n",
      a.heads, l.qk_head_dim, l.qk_pos_emb_head_dim, l.v_head_dim, describe(a.core_attention), l.kv_lora_rank,
      l.q_lora_rank > 0 ? fmt::format(", {} of queries", l.q_lora_rank) : "", describe(a.norm));
}

std::string describe(const LayerSpec& layer) {
  std::string text = fmt::format("    input_norm      {}\n", describe(layer.input_norm));
  text += "    self_attention  " +
          std::visit([](const auto& attention) { return describe(attention); }, layer.self_attention);
  if (const std::optional<RotarySpec> rotary = rotary_of(layer.self_attention)) {
    text += fmt::format("      rotary        {} channels, base {:g}{}\n", rotary->dim, rotary->base,
                        rotary->scaling.kind == RopeScaling::Kind::kNone
                            ? ""
                            : fmt::format(", scaling factor {:g}", rotary->scaling.factor));
  }
  text += fmt::format("    attention_bda   {}dropout {:g}\n",
                      proj_of(layer.self_attention).bias ? "bias, " : "", layer.attention_bda.dropout);
  text += fmt::format("    pre_mlp_norm    {}\n", describe(layer.pre_mlp_norm));
  text += std::visit([](const auto& part) { return describe(part); }, layer.mlp);
  text += fmt::format("    mlp_bda         {}dropout {:g}\n", output_bias(layer) ? "bias, " : "",
                      layer.mlp_bda.dropout);
  return text;
}

}  // namespace

CoreAttentionSpec& core_attention_of(AttentionSpec& spec) {
  return std::visit([](auto& attention) -> CoreAttentionSpec& { return attention.core_attention; }, spec);
}

const LinearSpec& proj_of(const AttentionSpec& spec) {
  return std::visit([](const auto& attention) -> const LinearSpec& { return attention.proj; }, spec);
}

std::optional<RotarySpec> rotary_of(const AttentionSpec& spec) {
  return std::visit([](const auto& attention) -> std::optional<RotarySpec> { return attention.rotary; },
                    spec);
}

std::int64_t key_columns(const AttentionSpec& spec, int tp) {
  if (const auto* latent = std::get_if<LatentAttentionSpec>(&spec)) {
    return latent->heads / tp * latent->sizes.core_dim();
  }
  const auto& a = std::get<SelfAttentionSpec>(spec);
  return std::max<std::int64_t>(a.groups / tp, 1) * a.head_dim;
}

std::string to_string(const ModelSpec& spec) {
  std::string text = fmt::format(
      "  embedding         {} tokens x {}{}{}\n", spec.vocab_size, spec.hidden_size,
      spec.embedding.learned_positions ? fmt::format(", {} learned positions", spec.max_positions) : "",
      spec.embedding.dropout > 0 ? fmt::format(", dropout {:g}", spec.embedding.dropout) : "");
  for (std::size_t i = 0; i < spec.layers.size();) {
    std::size_t end = i + 1;
    while (end < spec.layers.size() && spec.layers[end] == spec.layers[i]) ++end;
    text += end == i + 1 ? fmt::format("  layer {}\n", i) : fmt::format("  layers {} to {}\n", i, end - 1);
    text += describe(spec.layers[i]);
    i = end;
  }
  text += fmt::format("  final_norm        {}\n", describe(spec.final_norm));
  text += fmt::format("  output            {}\n", spec.output.tied ? "tied to the embedding" : "own weight");
  return text;
}

ModelSpec local_spec(const ModelConfig& given) {
  const ModelConfig c = resolved(given);
  const LayerSpec layer = layer_spec(c);
  std::vector<LayerSpec> layers(static_cast<std::size_t>(c.num_layers), layer);
  const std::vector<bool> mixtures = expert_layers(c.moe, c.num_layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (mixtures[i]) layers[i].mlp = moe_spec(c, std::get<MlpSpec>(layer.mlp));
  }
  return {.hidden_size = c.hidden_size,
          .vocab_size = c.vocab_size,
          .vocab_divisible_by = c.make_vocab_size_divisible_by,
          .max_positions = c.max_position_embeddings,
          .embedding = {c.position_embedding == PositionEmbedding::kLearnedAbsolute, c.hidden_dropout,
                        c.init_method_std},
          .layers = std::move(layers),
          .final_norm = layer.input_norm,
          .output = {.tied = c.tied, .init_std = c.init_method_std}};
}

bool is_frozen(const ModelSpec& spec, const std::string& tensor) {
  return std::any_of(spec.freeze.begin(), spec.freeze.end(),
                     [&](const std::string& pattern) { return matches(pattern, tensor); });
}

ModelSpec fused_spec(const ModelConfig& config) {
  ModelSpec spec = local_spec(config);
  for (LayerSpec& layer : spec.layers) {
    if (auto* mlp = std::get_if<MlpSpec>(&layer.mlp)) mlp->activation_again = true;
  }
  // At 16384 tokens the weight gradient's extra bytes are a few percent of the logits'.
  spec.output.fused_rows = 16384;
  return spec;
}

ModelSpec evaluation_spec(const ModelConfig& config) {
  ModelSpec spec = local_spec(config);
  spec.embedding.dropout = 0;
  for (LayerSpec& layer : spec.layers) {
    layer.attention_bda.dropout = layer.mlp_bda.dropout = 0;
    core_attention_of(layer.self_attention).dropout = 0;
  }
  return spec;
}

ModelSpec inference_spec(const ModelConfig& config) {
  ModelSpec spec = evaluation_spec(config);
  for (LayerSpec& layer : spec.layers) {
    core_attention_of(layer.self_attention).kind = CoreAttentionSpec::Kind::kCached;
    // A token that is generated has no others to compete with.
    if (auto* moe = std::get_if<MoeSpec>(&layer.mlp)) moe->router.capacity_factor = 0;
  }
  return spec;
}

std::int64_t ModelSpec::experts() const {
  for (const LayerSpec& layer : layers) {
    if (const auto* moe = std::get_if<MoeSpec>(&layer.mlp)) return moe->experts;
  }
  return 0;
}

std::vector<std::string> validate(const ModelSpec& spec, int tp, const ExpertSizes& sizes) {
  std::vector<std::string> problems;
  const auto divides_by = [&](std::int64_t size, const char* option, int ranks, const char* ranks_option) {
    if (size % ranks != 0) {
      problems.push_back(fmt::format("{} {} is not divisible by {} {}: choose a divisor of {}", option, size,
                                     ranks_option, ranks, size));
    }
  };
  const auto divides = [&](std::int64_t size, const char* option) {
    divides_by(size, option, tp, "--tensor-model-parallel-size");
  };
  if (spec.layers.empty()) problems.emplace_back("--num-layers 0: a model needs at least one layer");
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& attention = spec.layers[i].self_attention;
    if (i > 0 && spec.layers[i] == spec.layers[i - 1]) continue;
    divides(std::visit([](const auto& a) { return a.heads; }, attention), "--num-attention-heads");
    if (const auto* a = std::get_if<SelfAttentionSpec>(&attention); a != nullptr) {
      if (a->groups % tp != 0 && tp % a->groups != 0) {
        problems.push_back(fmt::format(
            "--num-query-groups {} and --tensor-model-parallel-size {}: neither divides the other", a->groups,
            tp));
      }
      if (a->rotary && a->rotary->dim % 2 != 0) {
        problems.push_back(
            fmt::format("--rotary-percent leaves {} rotated channels of --kv-channels {}: it must be even",
                        a->rotary->dim, a->head_dim));
      }
    }
    if (const auto* mlp = std::get_if<MlpSpec>(&spec.layers[i].mlp)) {
      divides(mlp->ffn_hidden_size, "--ffn-hidden-size");
    } else {
      const auto& moe = std::get<MoeSpec>(spec.layers[i].mlp);
      divides_by(moe.experts, "--num-experts", sizes.ep, "--expert-model-parallel-size");
      divides_by(moe.expert.ffn_hidden_size, "--moe-ffn-hidden-size", sizes.etp,
                 "--expert-tensor-parallel-size");
      if (moe.shared) divides(moe.shared->ffn_hidden_size, "--moe-shared-expert-intermediate-size");
    }
    if (rotary_of(attention) != rotary_of(spec.layers[0].self_attention)) {
      problems.push_back(
          fmt::format("layer {} has other rotary positions than layer 0: one table serves all layers", i));
    }
  }
  return problems;
}

}  // namespace weft
