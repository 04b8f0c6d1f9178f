// ModelSpec -> objects and parameters. Every name, shape, cut and initial value of a parameter is decided
// here.
#include "model/gpt_model.hpp"
#include "model/rotary_table.hpp"
#include "model/transformer_layer.hpp"
#include "nn/attention/context/exchanged_attention.hpp"
#include "nn/attention/context/gathered_attention.hpp"
#include "nn/attention/context/ring_attention.hpp"
#include "nn/attention/core_attention.hpp"
#include "nn/attention/head_norm.hpp"
#include "nn/attention/latent_attention.hpp"
#include "nn/attention/self_attention.hpp"
#include "nn/bias_dropout_add.hpp"
#include "nn/fused_head.hpp"
#include "nn/linear.hpp"
#include "nn/mlp.hpp"
#include "nn/moe/moe_layer.hpp"
#include "nn/norm.hpp"
#include "nn/overlapped_linear.hpp"
#include "nn/recompute.hpp"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

constexpr const char* kWords = "embedding.word_embeddings.weight";
constexpr const char* kOutput = "output_layer.weight";

class Builder {
 public:
  Builder(const ModelSpec& spec, Lane& lane, const BuildContext& context)
      : spec_(spec), lane_(lane), context_(context), tp_(context.tp.size()), tp_rank_(context.tp.rank()) {}

  static ExpertSizes expert_sizes(const BuildContext& context) {
    return context.experts ? context.experts->sizes : ExpertSizes{.etp = context.tp.size()};
  }

  std::unique_ptr<GptModel> model() {
    const auto layers = static_cast<std::int64_t>(spec_.layers.size());
    const StageRange stage = context_.stage.value_or(StageRange{true, 0, layers, true});
    GptModel::Parts parts;
    parts.shared = std::make_unique<GptModel::Shared>();
    shared_ = parts.shared.get();
    make_borders();
    if (stage.embedding) {
      parts.entry = gated(embedding_entry());
    } else {
      parts.entry = std::make_unique<ReceivedEntry>();
    }
    parts.first_layer = stage.first_layer;
    for (std::int64_t i = stage.first_layer; i < stage.first_layer + stage.layers; ++i) {
      block_ = static_cast<int>(1 + i);
      parts.layers.push_back(gated(layer(spec_.layers[static_cast<std::size_t>(i)], i)));
    }
    parts.layers = recomputed(std::move(parts.layers));
    block_ = static_cast<int>(1 + layers);
    if (stage.loss) {
      parts.exit = gated(loss_exit());
    } else {
      parts.exit = std::make_unique<SentExit>();
    }
    return std::make_unique<GptModel>(std::move(parts));
  }

 private:
  const nn::TensorParallelBorder& border() const { return *shared_->border; }
  static Init random(double std) { return {Init::Kind::kNormal, std}; }
  ParamTraits traits(bool decay) const { return {.decay = decay, .block = block_}; }
  // Where the rows of this rank's tensor-parallel group stand in a sequence.
  ops::RowPositions row_positions() const {
    return context_.context ? context_.context->cut.positions(context_.context->cp.rank())
                            : ops::RowPositions{};
  }
  std::int64_t first_row() const { return tp_rank_ * padded_vocab_per_rank(spec_, tp_); }

  void make_borders() {
    shared_->none = std::make_unique<nn::NoBorder>(context_.tp);
    const int chunks = spec_.tensor_parallel_chunks;
    if (spec_.sequence_parallel) {
      auto border = std::make_unique<nn::SequenceParallelBorder>(context_.tp, row_positions());
      if (chunks > 1) shared_->chunked = std::make_unique<nn::ChunkedSequenceParallelBorder>(*border, chunks);
      shared_->border = std::move(border);
    } else {
      auto border = std::make_unique<nn::ReplicatedBorder>(context_.tp, row_positions());
      if (chunks > 1) shared_->chunked = std::make_unique<nn::ChunkedReplicatedBorder>(*border, chunks);
      shared_->border = std::move(border);
    }
  }

  // Layers of a stage as the recomputation of whole layers has them.
  std::vector<std::unique_ptr<nn::Layer>> recomputed(std::vector<std::unique_ptr<nn::Layer>> layers) const {
    const RecomputeSpec& r = spec_.recompute;
    const bool uniform = r.kind == RecomputeSpec::Kind::kUniform;
    if (!uniform && r.kind != RecomputeSpec::Kind::kBlock) return layers;
    std::vector<std::unique_ptr<nn::Layer>> wrapped;
    for (std::size_t i = 0; i < layers.size();) {
      if (!uniform && static_cast<std::int64_t>(i) >= r.layers) {
        wrapped.push_back(std::move(layers[i++]));
        continue;
      }
      std::vector<std::unique_ptr<nn::Layer>> group;
      const std::size_t size = uniform ? static_cast<std::size_t>(r.layers) : 1;
      while (group.size() < size && i < layers.size()) group.push_back(std::move(layers[i++]));
      wrapped.push_back(std::make_unique<nn::RecomputedLayers>(std::move(group)));
    }
    return wrapped;
  }
  bool recomputes(bool RecomputeSpec::*part) const {
    return spec_.recompute.kind == RecomputeSpec::Kind::kSelective && spec_.recompute.*part;
  }

  std::unique_ptr<nn::Layer> gated(std::unique_ptr<nn::Layer> layer) const {
    if (context_.gate == nullptr) return layer;
    return std::make_unique<nn::GatedLayer>(*context_.gate, block_, std::move(layer));
  }
  std::unique_ptr<StageEntry> gated(std::unique_ptr<StageEntry> entry) const {
    if (context_.gate == nullptr) return entry;
    return std::make_unique<GatedEntry>(*context_.gate, block_, std::move(entry));
  }
  std::unique_ptr<StageExit> gated(std::unique_ptr<StageExit> exit) const {
    if (context_.gate == nullptr) return exit;
    // A tied output layer uses the embeddings, which are block 0.
    const std::vector<int> blocks =
        spec_.output.tied ? std::vector<int>{block_, 0} : std::vector<int>{block_};
    return std::make_unique<GatedExit>(*context_.gate, blocks, std::move(exit));
  }

  std::unique_ptr<StageEntry> embedding_entry() {
    const Param& words = *word_embeddings(kWords, false);
    return std::make_unique<EmbeddingEntry>(nn::Embedding(border(), words, first_row(), learned_positions(),
                                                          spec_.embedding.dropout,
                                                          nn::dropout_site(-1, "embedding")));
  }
  std::unique_ptr<nn::LearnedPositions> learned_positions() {
    if (!spec_.embedding.learned_positions) return std::make_unique<nn::NoLearnedPositions>();
    const Param& table = *position_embeddings();
    if (spec_.document_positions) return std::make_unique<nn::PositionsByDocument>(border(), table);
    return std::make_unique<nn::PositionsByPlace>(border(), table);
  }

  std::unique_ptr<StageExit> loss_exit() {
    std::unique_ptr<nn::Norm> final_norm = norm(spec_.final_norm, "decoder.final_layernorm");
    nn::LanguageModelHead head(border(), output_weight(),
                               {.vocabulary = spec_.vocab_size,
                                .first = first_row(),
                                .label_smoothing = spec_.output.label_smoothing,
                                .z_loss = spec_.output.z_loss});
    std::unique_ptr<nn::OutputHead> output;
    if (spec_.output.fused_rows > 0 && tp_ == 1) {
      output = std::make_unique<nn::FusedHead>(head, spec_.output.fused_rows);
    } else {
      output = std::make_unique<nn::LanguageModelHead>(head);
    }
    return std::make_unique<LossExit>(std::move(final_norm), std::move(output));
  }

  // Of a tied model: the word embeddings themselves where the first stage is here too, else a copy of them.
  const Param& output_weight() {
    if (!spec_.output.tied) return *own_output_weight();
    const Param* words = context_.params.find(kWords);
    return words != nullptr ? *context_.params.add_tied(kOutput, *words) : *word_embeddings(kOutput, true);
  }

  // Logical tensors: whole, or indices [rank · size/tp, ...) of one dim. `padded` > global size: vocabulary
  // padding. What is whole is used outside the tensor-parallel regions, where under sequence parallel every
  // rank sees its rows only.
  LogicalTensor whole(const std::string& name, const Shape& global, Init init) const {
    return {.name = name,
            .global = global,
            .count = global[0],
            .init = init,
            .partial_gradient = spec_.sequence_parallel && tp_ > 1};
  }
  LogicalTensor cut(const std::string& name, const Shape& global, int dim, Init init,
                    std::int64_t padded = 0) const {
    const std::int64_t count = (padded > 0 ? padded : global[dim]) / tp_;
    return {
        .name = name, .global = global, .cut = dim, .begin = tp_rank_ * count, .count = count, .init = init};
  }
  // Rows of key or value heads: [rank · groups / tp, ...) of the groups, and at least one.
  LogicalTensor cut_groups(const std::string& name, const Shape& global, std::int64_t groups,
                           Init init) const {
    if (groups >= tp_) return cut(name, global, 0, init);
    const int replicas = tp_ / static_cast<int>(groups);
    const std::int64_t count = global[0] / groups;
    return {.name = name,
            .global = global,
            .cut = 0,
            .begin = tp_rank_ / replicas * count,
            .count = count,
            .init = init,
            .replicas = replicas,
            .replica = tp_rank_ % replicas,
            .partial_gradient = true};
  }

  // Every new parameter. The parts of one are frozen together (the options are checked for it).
  const Param* add(const std::string& name, std::vector<LogicalTensor> parts, ParamTraits traits) {
    const auto frozen = [&](const LogicalTensor& part) { return part.state || is_frozen(spec_, part.name); };
    traits.frozen = frozen(parts.front());
    for (const LogicalTensor& part : parts) {
      WEFT_CHECK(frozen(part) == traits.frozen, "{}: {} and {} are one parameter", name, parts.front().name,
                 part.name);
    }
    return context_.params.add(name, std::move(parts), traits);
  }

  const Param* vector(const std::string& name, std::int64_t size, Init init) {
    return add(name, {whole(name, {size}, init)}, traits(false));
  }

  // The first stage's, or the last stage's copy under another name.
  const Param* word_embeddings(const char* name, bool copy) {
    return add(name,
               {cut(kWords, {spec_.vocab_size, spec_.hidden_size}, 0, random(spec_.embedding.init_std),
                    tp_ * padded_vocab_per_rank(spec_, tp_))},
               {.decay = true, .block = 0, .own_bucket = spec_.output.tied, .copy = copy});
  }
  const Param* position_embeddings() {
    const std::string name = "embedding.position_embeddings.weight";
    return add(name,
               {whole(name, {spec_.max_positions, spec_.hidden_size}, random(spec_.embedding.init_std))},
               traits(true));
  }
  const Param* own_output_weight() {
    return add(kOutput,
               {cut(kOutput, {spec_.vocab_size, spec_.hidden_size}, 0, random(spec_.output.init_std),
                    tp_ * padded_vocab_per_rank(spec_, tp_))},
               traits(true));
  }

  // `make(name, init)` makes a vector of the norm's size.
  template <class Make>
  std::unique_ptr<nn::Norm> norm_of(const NormSpec& spec, const std::string& name, const Make& make) {
    const Param* weight = make(name + ".weight", Init{Init::Kind::kOnes, 0});
    if (spec.kind == NormSpec::Kind::kRmsNorm) return std::make_unique<nn::RmsNorm>(*weight, spec.eps);
    const Param* bias = make(name + ".bias", Init{});
    return std::make_unique<nn::LayerNorm>(*weight, *bias, spec.eps);
  }
  std::unique_ptr<nn::Norm> norm(const NormSpec& spec, const std::string& name, std::int64_t size = 0) {
    return norm_of(spec, name, [&](const std::string& vector_name, Init init) {
      return vector(vector_name, size > 0 ? size : spec_.hidden_size, init);
    });
  }
  // Of a head, inside the tensor-parallel regions: each rank has the gradient that its own heads give.
  std::unique_ptr<nn::Norm> head_norm(const NormSpec& spec, const std::string& name, std::int64_t head_dim) {
    return norm_of(spec, name, [&](const std::string& vector_name, Init init) {
      LogicalTensor tensor = whole(vector_name, {head_dim}, init);
      tensor.partial_gradient = tp_ > 1;
      return add(vector_name, {tensor}, traits(false));
    });
  }

  // A column-parallel linear whose rows are several logical tensors, one below the other on each rank.
  struct Rows {
    std::string name;
    std::int64_t size;
    std::int64_t groups = 0;  // key/value heads, of which a rank has at least one; 0: rows to cut anywhere
    std::int64_t inputs = 0;  // 0: the hidden size
  };
  // `norm`: what makes its input again, or null. left_bias: null, or where to put the bias (or null), whose
  // gradient the caller then takes.
  std::unique_ptr<nn::Linear> column_linear(const LinearSpec& spec, const std::string& prefix,
                                            const std::string& fused, const std::vector<Rows>& rows,
                                            const nn::RecomputedNorm* norm,
                                            const Param** left_bias = nullptr) {
    std::vector<LogicalTensor> weights, biases;
    for (const Rows& r : rows) {
      const auto rows_of = [&](const std::string& name, const Shape& global, Init init) {
        return r.groups > 0 ? cut_groups(name, global, r.groups, init) : cut(name, global, 0, init);
      };
      weights.push_back(rows_of(prefix + r.name + ".weight",
                                {r.size, r.inputs > 0 ? r.inputs : spec_.hidden_size},
                                random(spec.init_std)));
      biases.push_back(rows_of(prefix + r.name + ".bias", {r.size}, {}));
    }
    const Param* weight = add(prefix + fused + ".weight", std::move(weights), traits(true));
    const Param* bias = spec.bias ? add(prefix + fused + ".bias", std::move(biases), traits(false)) : nullptr;
    const bool bias_gradient = left_bias == nullptr;
    if (!bias_gradient) *left_bias = bias;
    if (norm != nullptr && weight->trains()) {  // a frozen one has no use for its input
      return std::make_unique<nn::RecomputedInputLinear>(
          std::make_unique<nn::ColumnParallelLinear>(border(), *weight, bias, bias_gradient), *norm);
    }
    if (shared_->chunked != nullptr) {
      return std::make_unique<nn::OverlappedColumnParallelLinear>(*shared_->chunked, *weight, bias,
                                                                  context_.weight_grads);
    }
    return std::make_unique<nn::ColumnParallelLinear>(border(), *weight, bias, bias_gradient);
  }

  const Param& row_weight(const LinearSpec& spec, const std::string& name, std::int64_t inputs) {
    return *add(name + ".weight",
                {cut(name + ".weight", {spec_.hidden_size, inputs}, 1, random(spec.init_std))}, traits(true));
  }
  std::unique_ptr<nn::RowParallelLinear> plain_row_linear(const LinearSpec& spec, const std::string& name,
                                                          std::int64_t inputs) {
    return std::make_unique<nn::RowParallelLinear>(border(), row_weight(spec, name, inputs),
                                                   context_.weight_grads);
  }
  std::unique_ptr<nn::Linear> row_linear(const LinearSpec& spec, const std::string& name,
                                         std::int64_t inputs) {
    if (shared_->chunked == nullptr) return plain_row_linear(spec, name, inputs);
    return std::make_unique<nn::OverlappedRowParallelLinear>(*shared_->chunked,
                                                             row_weight(spec, name, inputs));
  }

  std::unique_ptr<nn::ResidualAdd> bias_dropout_add(const BiasDropoutAddSpec& spec, const LinearSpec& linear,
                                                    const std::string& name, std::int64_t layer,
                                                    const char* place) {
    const Param* bias = linear.bias ? vector(name + ".bias", spec_.hidden_size, {}) : nullptr;
    return std::make_unique<nn::BiasDropoutAdd>(border(), bias, spec.dropout, nn::dropout_site(layer, place));
  }

  std::unique_ptr<nn::CoreAttention> training_attention(const nn::CoreAttentionShape& shape,
                                                        std::int64_t heads, ContextMethod method) {
    if (!context_.context) return std::make_unique<nn::CausalAttention>(shape);
    const auto& [cp, cut, a2a, p2p] = *context_.context;
    const auto exchanged = [&](Communicator& group, const auto& inner) {
      nn::CoreAttentionShape own = shape;
      own.first_head += group.rank() * (heads / group.size());
      own.first_sink += group.rank() * (heads / group.size());
      return std::make_unique<nn::ExchangedAttention>(
          shape.head_dim, group, nn::SequenceCut(cut.order, cut.rows() * group.size(), group.size()),
          inner(own));
    };
    switch (method) {
      case ContextMethod::kAllGather:
        return std::make_unique<nn::GatheredAttention>(shape, cp, cut);
      case ContextMethod::kA2a:
        return exchanged(cp, [](const auto& own) { return std::make_unique<nn::CausalAttention>(own); });
      case ContextMethod::kA2aP2p:
        WEFT_CHECK(a2a != nullptr && p2p != nullptr, "attention by groups, and no groups");
        return exchanged(*a2a, [&, &ring = *p2p](const auto& own) {
          return std::make_unique<nn::RingAttention>(own, ring,
                                                     nn::SequenceCut(cut.order, cut.length(), ring.size()));
        });
      case ContextMethod::kP2p:
        break;
    }
    return std::make_unique<nn::RingAttention>(shape, cp, cut);
  }

  std::unique_ptr<nn::CoreAttention> core_attention(const CoreAttentionSpec& spec, std::int64_t heads,
                                                    std::int64_t head_dim, double scale,
                                                    const std::string& prefix, std::int64_t layer) {
    const std::string sinks = prefix + "core_attention.softmax_offset";
    const nn::CoreAttentionShape shape{
        .head_dim = static_cast<int>(head_dim),
        .scale = scale,
        .dropout = spec.dropout,
        .window = spec.window,
        .soft_cap = spec.soft_cap,
        .deterministic = spec.deterministic,
        .site = nn::dropout_site(layer, "core_attention"),
        .first_head = tp_rank_ * heads / tp_,
        .sinks = spec.sinks ? add(sinks, {cut(sinks, {heads}, 0, {})}, traits(false)) : nullptr};
    if (spec.kind == CoreAttentionSpec::Kind::kCached) {
      return std::make_unique<nn::CachedAttention>(shape, static_cast<std::size_t>(layer));
    }
    std::unique_ptr<nn::CoreAttention> core = training_attention(shape, heads / tp_, spec.context);
    if (!recomputes(&RecomputeSpec::core_attention)) return core;
    return std::make_unique<nn::RecomputedCoreAttention>(std::move(core));
  }

  std::unique_ptr<nn::PositionRotation> rotation(const std::optional<RotarySpec>& spec,
                                                 std::int64_t head_dim) {
    if (!spec) return std::make_unique<nn::NoRotation>();
    const bool documents = spec_.document_positions;
    if (!shared_->rotary) {
      // One table serves all layers: their rotary specs are equal (checked in validate).
      const std::int64_t rows =
          documents && context_.context ? context_.context->cut.length() : context_.positions;
      shared_->rotary = make_rotary_table(lane_, *spec, rows, context_.dtype,
                                          documents ? ops::RowPositions{} : row_positions());
    }
    if (documents) {
      return std::make_unique<nn::RotationByDocument>(*shared_->rotary, static_cast<int>(head_dim));
    }
    return std::make_unique<nn::RotaryRotation>(*shared_->rotary, static_cast<int>(head_dim));
  }

  std::unique_ptr<nn::HeadNorms> head_norms(const SelfAttentionSpec& spec, const std::string& prefix) {
    if (!spec.qk_norm) return std::make_unique<nn::NoHeadNorms>();
    auto query = head_norm(*spec.qk_norm, prefix + "q_layernorm", spec.head_dim);
    auto key = head_norm(*spec.qk_norm, prefix + "k_layernorm", spec.head_dim);
    return std::make_unique<nn::QueryKeyNorms>(spec.head_dim, std::move(query), std::move(key));
  }

  std::unique_ptr<nn::Sublayer> self_attention(const SelfAttentionSpec& spec, const std::string& prefix,
                                               std::int64_t layer, const nn::RecomputedNorm* norm) {
    const std::int64_t q = spec.heads * spec.head_dim, kv = spec.groups * spec.head_dim;
    auto qkv =
        column_linear(spec.qkv, prefix, "linear_qkv",
                      {{"linear_q", q}, {"linear_k", kv, spec.groups}, {"linear_v", kv, spec.groups}}, norm);
    auto norms = head_norms(spec, prefix);
    return std::make_unique<nn::SelfAttention>(
        nn::HeadCounts{spec.heads / tp_, std::max<std::int64_t>(spec.groups / tp_, 1), spec.head_dim},
        std::move(qkv), std::move(norms), rotation(spec.rotary, spec.head_dim),
        core_attention(spec.core_attention, spec.heads, spec.head_dim,
                       1.0 / std::sqrt(static_cast<double>(spec.head_dim)), prefix, layer),
        row_linear(spec.proj, prefix + "linear_proj", q));
  }

  // Outside the tensor-parallel regions, whole on every rank.
  std::unique_ptr<nn::Linear> outer_linear(const LinearSpec& spec, const std::string& name,
                                           std::int64_t outputs) {
    const std::string weight = name + ".weight";
    return std::make_unique<nn::ColumnParallelLinear>(
        *shared_->none,
        *add(weight, {whole(weight, {outputs, spec_.hidden_size}, random(spec.init_std))}, traits(true)),
        nullptr);
  }

  std::unique_ptr<nn::Sublayer> self_attention(const LatentAttentionSpec& spec, const std::string& prefix,
                                               std::int64_t layer, const nn::RecomputedNorm*) {
    const LatentConfig& l = spec.sizes;
    const std::int64_t core_dim = l.core_dim();
    nn::LatentAttention::Parts parts;
    const std::int64_t q = spec.heads * l.query_dim(), kv = spec.heads * (l.qk_head_dim + l.v_head_dim);
    if (l.q_lora_rank > 0) {
      auto down = outer_linear(spec.projections, prefix + "linear_q_down_proj", l.q_lora_rank);
      auto between = norm(spec.norm, prefix + "q_layernorm", l.q_lora_rank);
      parts.query = std::make_unique<nn::LowRankLinear>(
          std::move(down), std::move(between),
          column_linear(spec.projections, prefix, "linear_q_up_proj",
                        {{.name = "linear_q_up_proj", .size = q, .inputs = l.q_lora_rank}}, nullptr));
    } else {
      parts.query = column_linear(spec.projections, prefix, "linear_q_proj", {{"linear_q_proj", q}}, nullptr);
    }
    parts.kv_down = outer_linear(spec.projections, prefix + "linear_kv_down_proj",
                                 l.kv_lora_rank + l.qk_pos_emb_head_dim);
    parts.kv_norm = norm(spec.norm, prefix + "kv_layernorm", l.kv_lora_rank);
    parts.kv_up =
        column_linear(spec.projections, prefix, "linear_kv_up_proj",
                      {{.name = "linear_kv_up_proj", .size = kv, .inputs = l.kv_lora_rank}}, nullptr);
    parts.query_rotation = rotation(spec.rotary, core_dim);
    parts.key_rotation = rotation(spec.rotary, l.qk_pos_emb_head_dim);
    // The magnitude that YaRN gives the rotated channels is all channels' (DeepSeek-V2, appendix).
    const RopeScaling& scaling = spec.rotary.scaling;
    const double magnitude =
        scaling.kind == RopeScaling::Kind::kYarn ? yarn_magnitude(scaling.factor, scaling.mscale_all_dim) : 1;
    parts.core =
        core_attention(spec.core_attention, spec.heads, core_dim,
                       magnitude * magnitude / std::sqrt(static_cast<double>(l.query_dim())), prefix, layer);
    parts.proj = row_linear(spec.proj, prefix + "linear_proj", spec.heads * l.v_head_dim);
    return std::make_unique<nn::LatentAttention>(
        nn::LatentHeads{spec.heads / tp_, l.qk_pos_emb_head_dim, l.qk_head_dim, l.v_head_dim, l.kv_lora_rank},
        border(), std::move(parts));
  }

  static std::vector<Rows> feed_forward_rows(const MlpSpec& spec) {
    const std::int64_t f = spec.ffn_hidden_size;
    return spec.gated ? std::vector<Rows>{{"linear_gate", f}, {"linear_up", f}}
                      : std::vector<Rows>{{"linear_fc1", f}};
  }
  static std::unique_ptr<nn::ActivationLayer> activation(const MlpSpec& spec) {
    if (spec.gated) return std::make_unique<nn::GatedActivation>(spec.activation);
    return std::make_unique<nn::PlainActivation>(spec.activation);
  }

  std::unique_ptr<nn::Sublayer> feed_forward(const MlpSpec& spec, const std::string& prefix,
                                             const nn::RecomputedNorm* norm) {
    const std::int64_t f = spec.ffn_hidden_size;
    const std::vector<Rows> rows = feed_forward_rows(spec);
    const bool again = spec.activation_again && shared_->chunked == nullptr;
    const Param* left_bias = nullptr;
    auto fc1 = column_linear(spec.fc1, prefix, "linear_fc1", rows, norm,
                             again && !spec.gated ? &left_bias : nullptr);
    if (again) {
      return std::make_unique<nn::ActivationAgainMlp>(std::move(fc1), left_bias, spec.activation, spec.gated,
                                                      plain_row_linear(spec.fc2, prefix + "linear_fc2", f));
    }
    return std::make_unique<nn::Mlp>(std::move(fc1), activation(spec),
                                     row_linear(spec.fc2, prefix + "linear_fc2", f));
  }

  // --- mixtures of experts

  // Indices of an expert's tensor along `dim` on this rank.
  LogicalTensor of_expert(const std::string& name, const Shape& global, int dim, std::int64_t expert,
                          std::int64_t local_row, double std) const {
    const ExpertSizes sizes = expert_sizes(context_);
    const int etp_rank = (context_.experts ? context_.experts->group.rank() : tp_rank_) % sizes.etp;
    const std::int64_t count = global[dim] / sizes.etp;
    return {.name = name,
            .global = global,
            .cut = dim,
            .begin = etp_rank * count,
            .count = count,
            .local_row = local_row,
            .init = random(std),
            .expert = static_cast<int>(expert)};
  }

  std::unique_ptr<nn::GroupedExperts> experts(const MlpSpec& spec, const std::string& prefix,
                                              const nn::ExpertPlacement& placement) {
    const std::int64_t h = spec_.hidden_size, f = spec.ffn_hidden_size, own = f / placement.etp;
    const std::vector<const char*> names = spec.gated ? std::vector<const char*>{"linear_gate", "linear_up"}
                                                      : std::vector<const char*>{"linear_fc1"};
    std::vector<LogicalTensor> fc1, fc2;
    for (std::int64_t i = 0; i < placement.local(); ++i) {
      const std::int64_t e = placement.first() + i;
      const std::string expert = fmt::format("{}experts.{}.", prefix, e);
      for (const char* name : names) {
        const auto row = static_cast<std::int64_t>(fc1.size()) * own;
        fc1.push_back(of_expert(expert + name + ".weight", {f, h}, 0, e, row, spec.fc1.init_std));
      }
      fc2.push_back(of_expert(expert + "linear_fc2.weight", {h, f}, 1, e, i * h, spec.fc2.init_std));
    }
    ParamTraits marks = traits(true);
    marks.expert = true;
    const Param* first = add(prefix + "experts.linear_fc1.weight", std::move(fc1), marks);
    const Param* second = add(prefix + "experts.linear_fc2.weight", std::move(fc2), marks);
    return std::make_unique<nn::GroupedExperts>(*first, *second, spec.activation, spec.gated);
  }

  // What every rank of a tensor-parallel group has whole, but uses for its own tokens alone.
  LogicalTensor of_router(const std::string& name, const Shape& global, Init init) const {
    LogicalTensor tensor = whole(name, global, init);
    tensor.partial_gradient = tp_ > 1;
    return tensor;
  }

  std::unique_ptr<nn::Router> router(const MoeSpec& spec, const std::string& prefix, std::int64_t layer,
                                     const nn::TokenShare& share) {
    const std::string weight = prefix + "router.weight", bias = prefix + "router.expert_bias";
    const Param* weights =
        add(weight, {of_router(weight, {spec.experts, spec_.hidden_size}, random(spec.router.init_std))},
            traits(true));
    const Param* biases = nullptr;
    if (spec.router.expert_bias) {
      LogicalTensor state = whole(bias, {spec.experts}, {});
      state.partial_gradient = false;
      state.state = true;
      biases = add(bias, {state}, traits(false));
    }
    const RouterSpec& r = spec.router;
    const nn::RouterShape shape{
        .experts = spec.experts,
        .options = r.options,
        .dtype = r.dtype == RouterDtype::kFp64 ? DType::kF64 : accumulator_of(context_.dtype),
        .aux = r.aux,
        .sequence_aux = r.sequence_aux,
        .z = r.z,
        .capacity_factor = r.capacity_factor,
        .drop_by_position = r.drop_by_position};
    std::optional<nn::RouterStatistics> statistics;
    if (const Tensor& all = context_.router_statistics; all.defined()) {
      statistics.emplace(all.slice(layer, 1).view({all.dim(1)}), spec.experts);
    }
    return std::make_unique<nn::Router>(shape, *weights, biases, share,
                                        context_.experts ? context_.experts->microbatch : context_.tp,
                                        std::move(statistics));
  }

  std::unique_ptr<nn::ExpertExchange> exchange(const MoeSpec& spec, const nn::ExpertPlacement& placement,
                                               Communicator& group) {
    if (group.size() == 1) return std::make_unique<nn::LocalExchange>(placement);
    if (spec.dispatcher == TokenDispatcher::kAllGather) {
      return std::make_unique<nn::AllGatherExchange>(placement, group);
    }
    return std::make_unique<nn::AllToAllExchange>(placement, group);
  }

  std::unique_ptr<nn::SharedExpert> shared_expert(const MlpSpec& spec, const std::string& prefix) {
    const std::int64_t f = spec.ffn_hidden_size;
    auto fc1 = column_linear(spec.fc1, prefix, "linear_fc1", feed_forward_rows(spec), nullptr);
    return std::make_unique<nn::SharedExpert>(std::move(fc1), activation(spec),
                                              row_linear(spec.fc2, prefix + "linear_fc2", f));
  }

  // The norm before it is kept, not recomputed: the router reads it, and the rows at experts are kept anyway.
  std::unique_ptr<nn::Sublayer> feed_forward(const MoeSpec& spec, const std::string& prefix,
                                             std::int64_t layer) {
    Communicator& group = context_.experts ? context_.experts->group : context_.tp;
    Communicator& microbatch = context_.experts ? context_.experts->microbatch : context_.tp;
    const ExpertSizes sizes = expert_sizes(context_);
    const nn::ExpertPlacement placement{.experts = spec.experts,
                                        .topk = spec.router.options.topk,
                                        .etp = sizes.etp,
                                        .ep = sizes.ep,
                                        .rank = group.rank(),
                                        .microbatches = std::max(group.size() / microbatch.size(), 1),
                                        .padded = spec.router.pad_to_capacity};
    nn::MoeLayer::Parts parts;
    if (spec_.sequence_parallel || tp_ == 1) {
      parts.share = std::make_unique<nn::OwnTokens>();
    } else {
      parts.share = std::make_unique<nn::SharedTokens>(context_.tp);
    }
    parts.router = router(spec, prefix, layer, *parts.share);
    parts.exchange = exchange(spec, placement, group);
    parts.experts = experts(spec.expert, prefix, placement);
    if (spec.shared) parts.shared = shared_expert(*spec.shared, prefix + "shared_experts.");
    return std::make_unique<nn::MoeLayer>(std::move(parts));
  }

  static const nn::RecomputedNorm* recompute(std::unique_ptr<nn::Norm>& norm) {
    auto recomputed = std::make_unique<nn::RecomputedNorm>(std::move(norm));
    const nn::RecomputedNorm* made = recomputed.get();
    norm = std::move(recomputed);
    return made;
  }

  std::unique_ptr<nn::Layer> layer(const LayerSpec& spec, std::int64_t index) {
    const std::string prefix = fmt::format("decoder.layers.{}.", index);
    const auto* dense = std::get_if<MlpSpec>(&spec.mlp);
    TransformerLayer::Slots slots;
    slots.input_norm = norm(spec.input_norm, prefix + "input_layernorm");
    const nn::RecomputedNorm* input_norm = nullptr;
    const nn::RecomputedNorm* pre_mlp_norm = nullptr;
    // Two projections read the norm in front of latent attention: it is kept for both.
    const bool one_reader = std::holds_alternative<SelfAttentionSpec>(spec.self_attention);
    if (recomputes(&RecomputeSpec::norms) && one_reader) input_norm = recompute(slots.input_norm);
    slots.self_attention = std::visit(
        [&](const auto& attention) {
          return self_attention(attention, prefix + "self_attention.", index, input_norm);
        },
        spec.self_attention);
    slots.attention_bda = bias_dropout_add(spec.attention_bda, proj_of(spec.self_attention),
                                           prefix + "self_attention.linear_proj", index, "attention");
    slots.pre_mlp_norm = norm(spec.pre_mlp_norm, prefix + "pre_mlp_layernorm");
    // In a feed-forward network that is recomputed whole, the norm's output is the input that is kept.
    const bool whole_mlp = recomputes(&RecomputeSpec::mlp);
    if (dense != nullptr) {
      if (recomputes(&RecomputeSpec::norms) && !whole_mlp) pre_mlp_norm = recompute(slots.pre_mlp_norm);
      slots.mlp = feed_forward(*dense, prefix + "mlp.", pre_mlp_norm);
    } else {
      slots.mlp = feed_forward(std::get<MoeSpec>(spec.mlp), prefix + "mlp.", index);
    }
    if (whole_mlp) slots.mlp = std::make_unique<nn::RecomputedSublayer>(std::move(slots.mlp));
    slots.mlp_bda = bias_dropout_add(spec.mlp_bda, dense != nullptr ? dense->fc2 : LinearSpec{},
                                     prefix + "mlp.linear_fc2", index, "mlp");
    return std::make_unique<TransformerLayer>(std::move(slots));
  }

  const ModelSpec& spec_;
  Lane& lane_;
  const BuildContext& context_;
  int tp_, tp_rank_;
  int block_ = 0;  // see ParamTraits
  GptModel::Shared* shared_ = nullptr;
};

}  // namespace

std::int64_t padded_vocab_per_rank(const ModelSpec& spec, int tensor_parallel_size) {
  const std::int64_t unit = spec.vocab_divisible_by * tensor_parallel_size;
  return (spec.vocab_size + unit - 1) / unit * spec.vocab_divisible_by;
}

std::unique_ptr<GptModel> build(const ModelSpec& spec, Lane& lane, const BuildContext& context) {
  if (std::vector<std::string> problems = validate(spec, context.tp.size(), Builder::expert_sizes(context));
      !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return Builder(spec, lane, context).model();
}

std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec, const StageRange& stage) {
  const std::unique_ptr<Arena> arena = Arena::meta();
  Workers workers(1);
  Lane lane{*arena, workers, {}};
  const std::unique_ptr<Communicator> self = self_communicator("tp");
  ParamSet params;
  ModelSpec one_rank = spec;
  one_rank.sequence_parallel = false;
  build(
      one_rank, lane,
      {.params = params, .tp = *self, .dtype = DType::kF32, .positions = spec.max_positions, .stage = stage});
  std::vector<LogicalTensor> tensors;
  for (const auto& param : params.all()) {
    if (param->owner() != nullptr || param->traits().copy) continue;
    for (LogicalTensor part : param->parts()) {
      part.count = part.global[std::max(part.cut, 0)];
      tensors.push_back(std::move(part));
    }
  }
  return tensors;
}

}  // namespace weft
