// ModelSpec -> objects and parameters. Every name, shape, cut and initial value of a parameter is decided
// here.
#include "model/gpt_model.hpp"
#include "model/rotary_table.hpp"
#include "model/transformer_layer.hpp"
#include "nn/attention/core_attention.hpp"
#include "nn/attention/self_attention.hpp"
#include "nn/bias_dropout_add.hpp"
#include "nn/linear.hpp"
#include "nn/mlp.hpp"
#include "nn/norm.hpp"

#include <cmath>

namespace weft {
namespace {

class Builder {
 public:
  Builder(const ModelSpec& spec, Lane& lane, const BuildContext& context)
      : spec_(spec), lane_(lane), context_(context), tp_(context.tp.size()), tp_rank_(context.tp.rank()) {}

  std::unique_ptr<GptModel> model() {
    GptModel::Parts parts;
    parts.shared = std::make_unique<GptModel::Shared>();
    parts.shared->border = std::make_unique<nn::ReplicatedBorder>(context_.tp);
    shared_ = parts.shared.get();
    const Param& words = *word_embeddings();
    const std::int64_t first_row = tp_rank_ * padded_vocab_per_rank(spec_, tp_);
    parts.embedding = std::make_unique<nn::Embedding>(
        border(), words, first_row, spec_.embedding.learned_positions ? position_embeddings() : nullptr,
        spec_.embedding.dropout, nn::dropout_site(-1, "embedding"));
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      parts.layers.push_back(layer(spec_.layers[i], static_cast<std::int64_t>(i)));
    }
    parts.final_norm = norm(spec_.final_norm, "decoder.final_layernorm");
    const Param& output =
        spec_.output.tied ? *context_.params.add_tied("output_layer.weight", words) : *output_weight();
    parts.head = std::make_unique<nn::LanguageModelHead>(
        border(), output,
        ops::CrossEntropyOptions{.vocabulary = spec_.vocab_size,
                                 .first = first_row,
                                 .label_smoothing = spec_.output.label_smoothing,
                                 .z_loss = spec_.output.z_loss});
    return std::make_unique<GptModel>(std::move(parts));
  }

 private:
  const nn::TensorParallelBorder& border() const { return *shared_->border; }
  static Init random(double std) { return {Init::Kind::kNormal, std}; }

  // Logical tensors: whole, or indices [rank · size/tp, ...) of one dim. `padded` > global size: vocabulary
  // padding.
  static LogicalTensor whole(const std::string& name, const Shape& global, Init init) {
    return {name, global, -1, 0, global[0], 0, init};
  }
  LogicalTensor cut(const std::string& name, const Shape& global, int dim, Init init,
                    std::int64_t padded = 0) const {
    const std::int64_t count = (padded > 0 ? padded : global[dim]) / tp_;
    return {name, global, dim, tp_rank_ * count, count, 0, init};
  }

  const Param* vector(const std::string& name, std::int64_t size, Init init) {
    return context_.params.add(name, {whole(name, {size}, init)}, false);
  }

  const Param* word_embeddings() {
    const std::string name = "embedding.word_embeddings.weight";
    return context_.params.add(
        name,
        {cut(name, {spec_.vocab_size, spec_.hidden_size}, 0, random(spec_.embedding.init_std),
             tp_ * padded_vocab_per_rank(spec_, tp_))},
        true);
  }
  const Param* position_embeddings() {
    const std::string name = "embedding.position_embeddings.weight";
    return context_.params.add(
        name, {whole(name, {spec_.max_positions, spec_.hidden_size}, random(spec_.embedding.init_std))},
        true);
  }
  const Param* output_weight() {
    const std::string name = "output_layer.weight";
    return context_.params.add(name,
                               {cut(name, {spec_.vocab_size, spec_.hidden_size}, 0,
                                    random(spec_.output.init_std), tp_ * padded_vocab_per_rank(spec_, tp_))},
                               true);
  }

  std::unique_ptr<nn::Norm> norm(const NormSpec& spec, const std::string& name) {
    const Param* weight = vector(name + ".weight", spec_.hidden_size, {Init::Kind::kOnes, 0});
    if (spec.kind == NormSpec::Kind::kRmsNorm) return std::make_unique<nn::RmsNorm>(*weight, spec.eps);
    const Param* bias = vector(name + ".bias", spec_.hidden_size, {});
    return std::make_unique<nn::LayerNorm>(*weight, *bias, spec.eps);
  }

  // A column-parallel linear whose rows are several logical tensors, one below the other on each rank.
  struct Rows {
    std::string name;
    std::int64_t size;
  };
  std::unique_ptr<nn::Linear> column_linear(const LinearSpec& spec, const std::string& prefix,
                                            const std::string& fused, const std::vector<Rows>& rows) {
    std::vector<LogicalTensor> weights, biases;
    for (const Rows& r : rows) {
      weights.push_back(
          cut(prefix + r.name + ".weight", {r.size, spec_.hidden_size}, 0, random(spec.init_std)));
      biases.push_back(cut(prefix + r.name + ".bias", {r.size}, 0, {}));
    }
    const Param* weight = context_.params.add(prefix + fused + ".weight", std::move(weights), true);
    const Param* bias =
        spec.bias ? context_.params.add(prefix + fused + ".bias", std::move(biases), false) : nullptr;
    return std::make_unique<nn::ColumnParallelLinear>(border(), *weight, bias);
  }

  std::unique_ptr<nn::Linear> row_linear(const LinearSpec& spec, const std::string& name,
                                         std::int64_t inputs) {
    const Param* weight = context_.params.add(
        name + ".weight", {cut(name + ".weight", {spec_.hidden_size, inputs}, 1, random(spec.init_std))},
        true);
    return std::make_unique<nn::RowParallelLinear>(border(), *weight);
  }

  std::unique_ptr<nn::ResidualAdd> bias_dropout_add(const BiasDropoutAddSpec& spec, const LinearSpec& linear,
                                                    const std::string& name, std::int64_t layer,
                                                    const char* place) {
    const Param* bias = linear.bias ? vector(name + ".bias", spec_.hidden_size, {}) : nullptr;
    return std::make_unique<nn::BiasDropoutAdd>(bias, spec.dropout, nn::dropout_site(layer, place));
  }

  std::unique_ptr<nn::CoreAttention> core_attention(const SelfAttentionSpec& spec, std::int64_t layer) {
    const nn::CoreAttentionShape shape{.head_dim = static_cast<int>(spec.head_dim),
                                       .scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim)),
                                       .dropout = spec.core_attention.dropout,
                                       .site = nn::dropout_site(layer, "core_attention"),
                                       .first_head = tp_rank_ * spec.heads / tp_};
    if (spec.core_attention.kind == CoreAttentionSpec::Kind::kCached) {
      return std::make_unique<nn::CachedAttention>(shape, static_cast<std::size_t>(layer));
    }
    return std::make_unique<nn::CausalAttention>(shape);
  }

  std::unique_ptr<nn::PositionRotation> rotation(const SelfAttentionSpec& spec) {
    if (!spec.rotary) return std::make_unique<nn::NoRotation>();
    if (!shared_
             ->rotary) {  // one table serves all layers: their rotary specs are equal (checked in validate)
      shared_->rotary = make_rotary_table(lane_, *spec.rotary, context_.positions, context_.dtype);
    }
    return std::make_unique<nn::RotaryRotation>(*shared_->rotary, static_cast<int>(spec.head_dim));
  }

  std::unique_ptr<nn::Sublayer> self_attention(const SelfAttentionSpec& spec, const std::string& prefix,
                                               std::int64_t layer) {
    const std::int64_t q = spec.heads * spec.head_dim, kv = spec.groups * spec.head_dim;
    auto qkv =
        column_linear(spec.qkv, prefix, "linear_qkv", {{"linear_q", q}, {"linear_k", kv}, {"linear_v", kv}});
    return std::make_unique<nn::SelfAttention>(
        nn::HeadCounts{spec.heads / tp_, spec.groups / tp_, spec.head_dim}, std::move(qkv), rotation(spec),
        core_attention(spec, layer), row_linear(spec.proj, prefix + "linear_proj", q));
  }

  std::unique_ptr<nn::Sublayer> mlp(const MlpSpec& spec, const std::string& prefix) {
    const std::int64_t f = spec.ffn_hidden_size;
    const std::vector<Rows> rows = spec.gated ? std::vector<Rows>{{"linear_gate", f}, {"linear_up", f}}
                                              : std::vector<Rows>{{"linear_fc1", f}};
    auto fc1 = column_linear(spec.fc1, prefix, "linear_fc1", rows);
    std::unique_ptr<nn::ActivationLayer> activation;
    if (spec.gated) {
      activation = std::make_unique<nn::GatedActivation>(spec.activation);
    } else {
      activation = std::make_unique<nn::PlainActivation>(spec.activation);
    }
    return std::make_unique<nn::Mlp>(std::move(fc1), std::move(activation),
                                     row_linear(spec.fc2, prefix + "linear_fc2", f));
  }

  std::unique_ptr<nn::Layer> layer(const LayerSpec& spec, std::int64_t index) {
    const std::string prefix = fmt::format("decoder.layers.{}.", index);
    const auto& feed_forward = std::get<MlpSpec>(spec.mlp);
    TransformerLayer::Slots slots;
    slots.input_norm = norm(spec.input_norm, prefix + "input_layernorm");
    slots.self_attention = self_attention(spec.self_attention, prefix + "self_attention.", index);
    slots.attention_bda = bias_dropout_add(spec.attention_bda, spec.self_attention.proj,
                                           prefix + "self_attention.linear_proj", index, "attention");
    slots.pre_mlp_norm = norm(spec.pre_mlp_norm, prefix + "pre_mlp_layernorm");
    slots.mlp = mlp(feed_forward, prefix + "mlp.");
    slots.mlp_bda = bias_dropout_add(spec.mlp_bda, feed_forward.fc2, prefix + "mlp.linear_fc2", index, "mlp");
    return std::make_unique<TransformerLayer>(std::move(slots));
  }

  const ModelSpec& spec_;
  Lane& lane_;
  const BuildContext& context_;
  int tp_, tp_rank_;
  GptModel::Shared* shared_ = nullptr;
};

}  // namespace

std::int64_t padded_vocab_per_rank(const ModelSpec& spec, int tp) {
  const std::int64_t unit = spec.vocab_divisible_by * tp;
  return (spec.vocab_size + unit - 1) / unit * spec.vocab_divisible_by;
}

std::unique_ptr<GptModel> build(const ModelSpec& spec, Lane& lane, const BuildContext& context) {
  if (std::vector<std::string> problems = validate(spec, context.tp.size()); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return Builder(spec, lane, context).model();
}

}  // namespace weft
