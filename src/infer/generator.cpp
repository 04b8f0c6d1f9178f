#include "infer/generator.hpp"

#include <algorithm>

namespace weft {
namespace {

// Prompts are read in pieces of this length, so that activations stay small however long the prompt is.
constexpr std::int64_t kPrefillPiece = 256;

template <class T>
void append(const Tensor& row, std::int64_t count, std::vector<double>& out) {
  const T* x = row.data<T>();
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<double>(static_cast<accumulator_t<T>>(x[i])));
}

void append(const Tensor& row, std::int64_t count, std::vector<double>& out) {
  switch (row.dtype()) {
    case DType::kF64:
      return append<double>(row, count, out);
    case DType::kF32:
      return append<float>(row, count, out);
    case DType::kBF16:
      return append<bf16>(row, count, out);
    case DType::kF16:
      return append<f16>(row, count, out);
    default:
      WEFT_CHECK(false, "logits of {}", name_of(row.dtype()));
  }
}

std::int64_t length(const GenerateRequest::Tokens& tokens) {
  return static_cast<std::int64_t>(tokens.size());
}

std::int64_t longest(const std::vector<GenerateRequest::Tokens>& prompts) {
  std::int64_t n = 0;
  for (const auto& p : prompts) n = std::max(n, length(p));
  return n;
}

}  // namespace

std::int64_t GenerateRequest::positions() const {
  return longest(prompts) + max_new_tokens;
}

std::vector<std::string> problems_of(const GenerateRequest& request, const ModelConfig& config) {
  std::vector<std::string> problems = problems_of(request.sampling);
  if (request.max_new_tokens < 0) {
    problems.push_back(fmt::format("--max-new-tokens {}: must not be negative", request.max_new_tokens));
  }
  if (request.prompts.empty())
    problems.push_back("no prompt: give --prompt, --prompt-tokens or --prompt-file");
  const auto which = [&](std::size_t row) {
    return request.prompts.size() == 1 ? std::string("the prompt") : fmt::format("prompt {}", row + 1);
  };
  for (std::size_t row = 0; row < request.prompts.size(); ++row) {
    const GenerateRequest::Tokens& prompt = request.prompts[row];
    if (prompt.empty()) problems.push_back(which(row) + " has no tokens: generation needs one to begin with");
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      if (prompt[i] >= 0 && prompt[i] < config.vocab_size) continue;
      problems.push_back(fmt::format("{}: token {} (number {}) is outside of the model's vocabulary of {}",
                                     which(row), prompt[i], i + 1, config.vocab_size));
      break;
    }
    const std::int64_t room = config.max_position_embeddings - length(prompt);
    if (config.position_embedding == PositionEmbedding::kLearnedAbsolute && request.max_new_tokens > room) {
      problems.push_back(fmt::format(
          "{} of {} tokens and --max-new-tokens {} need {} positions, but the model has "
          "learned {}: {}",
          which(row), prompt.size(), request.max_new_tokens, length(prompt) + request.max_new_tokens,
          config.max_position_embeddings,
          room > 0 ? fmt::format("--max-new-tokens can be at most {}", room) : "shorten the prompt"));
    }
  }
  return problems;
}

Generator::Generator(Lane& lane, Communicator& tp, const ModelConfig& config, DType dtype,
                     std::int64_t positions)
    : lane_(lane),
      tp_(tp),
      self_(self_communicator("dp")),
      config_(resolved(config)),
      spec_(inference_spec(config_)),
      dtype_(dtype) {
  model_ = build(spec_, lane_, {.params = params_, .tp = tp_, .dtype = dtype, .positions = positions});
  buffer_ = std::make_unique<ParamBuffer>(lane_, params_, *self_,
                                          ParamBufferOptions{.dtype = dtype, .gradients = false});
}

KvCache Generator::make_cache(std::int64_t positions, std::int64_t rows) {
  KvCache cache;
  for (const LayerSpec& layer : spec_.layers) {
    const Shape shape{
        positions, rows,
        std::max<std::int64_t>(layer.self_attention.groups / tp_.size(), 1) * layer.self_attention.head_dim};
    cache.keys.push_back(lane_.alloc(dtype_, shape, "key/value cache"));
    cache.values.push_back(lane_.alloc(dtype_, shape, "key/value cache"));
  }
  return cache;
}

std::vector<std::vector<double>> Generator::feed(const std::vector<GenerateRequest::Tokens>& rows,
                                                 std::int64_t first, std::int64_t count, KvCache& cache) {
  const auto b = static_cast<std::int64_t>(rows.size());
  Microbatch mb;
  mb.saved = SavedStack(false);
  mb.cache = &cache;
  mb.batch.first_position = first;
  mb.batch.tokens = lane_.alloc(DType::kI32, {b, count}, "tokens");
  if (!lane_.meta()) {
    auto* token = mb.batch.tokens.data<std::int32_t>();
    for (const GenerateRequest::Tokens& row : rows) {
      // A row that has ended goes on with any token: nobody looks at it again.
      for (std::int64_t i = first; i < first + count; ++i) {
        *token++ = i < length(row) ? row[static_cast<std::size_t>(i)] : 0;
      }
    }
  }
  const Tensor mine = model_->last_logits(lane_, mb);          // [1, b, V_padded/tp]
  const Tensor all = tp_.all_gather(lane_, mine).wait(lane_);  // [tp, b, V_padded/tp]
  if (lane_.meta() || tp_.rank() != 0) return {};
  std::vector<std::vector<double>> logits(rows.size());
  for (std::int64_t row = 0; row < b; ++row) {
    std::vector<double>& out = logits[static_cast<std::size_t>(row)];
    out.reserve(static_cast<std::size_t>(spec_.vocab_size));
    for (std::int64_t r = 0; r < tp_.size(); ++r) {
      append(all.slice(r, 1).view({b, all.dim(2)}).slice(row, 1),
             std::min(all.dim(2), spec_.vocab_size - static_cast<std::int64_t>(out.size())), out);
    }
  }
  return logits;
}

void Generator::agree(std::vector<std::int32_t>& chosen) {
  const Tensor t = lane_.alloc(DType::kI32, {static_cast<std::int64_t>(chosen.size())}, "chosen tokens");
  if (!lane_.meta()) std::copy(chosen.begin(), chosen.end(), t.data<std::int32_t>());
  tp_.broadcast(lane_, t, 0).wait(lane_);
  if (!lane_.meta()) std::copy_n(t.data<std::int32_t>(), chosen.size(), chosen.begin());
}

std::vector<GenerateRequest::Tokens> Generator::generate(const GenerateRequest& request,
                                                         const OnToken& on_token) {
  if (std::vector<std::string> problems = problems_of(request, config_); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  Sampler sampler(request.sampling);
  std::vector<GenerateRequest::Tokens> rows = request.prompts;
  if (request.max_new_tokens == 0) return rows;
  std::int64_t shortest = length(rows[0]);
  for (const auto& row : rows) shortest = std::min(shortest, length(row));

  const std::size_t b = rows.size();
  std::vector<bool> ended(b, false);
  KvCache cache = make_cache(request.positions(), static_cast<std::int64_t>(b));
  for (std::int64_t fed = 0; std::find(ended.begin(), ended.end(), false) != ended.end();) {
    const std::int64_t count = fed < shortest ? std::min(kPrefillPiece, shortest - fed) : 1;
    const std::vector<std::vector<double>> logits = feed(rows, fed, count, cache);
    fed += count;
    if (fed < shortest) continue;

    std::vector<std::int32_t> chosen(b, 0);
    const auto waits = [&](std::size_t row) { return !ended[row] && length(rows[row]) == fed; };
    if (!logits.empty()) {
      for (std::size_t row = 0; row < b; ++row) {
        if (!waits(row)) continue;
        const std::uint64_t sequence = request.sequences.empty() ? row : request.sequences.at(row);
        chosen[row] = sampler.next(logits[row], sequence, fed);
      }
    }
    agree(chosen);
    for (std::size_t row = 0; row < b; ++row) {
      if (!waits(row)) continue;
      const std::int32_t token = chosen[row];
      rows[row].push_back(token);
      const bool stop =
          std::find(request.end_tokens.begin(), request.end_tokens.end(), token) != request.end_tokens.end();
      ended[row] = (stop && !lane_.meta()) ||
                   length(rows[row]) == length(request.prompts[row]) + request.max_new_tokens;
      if (on_token) {
        on_token({row, token, logits.empty() ? std::span<const double>() : logits[row], ended[row]});
      }
    }
  }
  return rows;
}

std::size_t generation_bytes(Workers& workers, const ModelConfig& config, DType dtype,
                             int tensor_parallel_rank, int tensor_parallel_size,
                             std::span<const GenerateRequest> requests) {
  const std::unique_ptr<Arena> arena = Arena::meta();
  Lane lane{*arena, workers, {}};
  const std::unique_ptr<Communicator> tp =
      tensor_parallel_size == 1 ? self_communicator("tp")
                                : planned_communicator("tp", tensor_parallel_rank, tensor_parallel_size);
  std::int64_t positions = 1;
  for (const GenerateRequest& request : requests) positions = std::max(positions, request.positions());
  Generator generator(lane, *tp, config, dtype, positions);
  for (const GenerateRequest& request : requests) generator.generate(request);
  return arena->high_water();
}

}  // namespace weft
