#include "infer/generator.hpp"

#include <algorithm>

#include "ops/elementwise.hpp"

namespace weft {
namespace {

// Prompts are read in pieces of this length, so that activations stay small however long the prompt is.
constexpr std::int64_t kPrefillPiece = 256;

std::int64_t length(const GenerateRequest::Tokens& tokens) {
  return static_cast<std::int64_t>(tokens.size());
}

std::int64_t longest(const std::vector<GenerateRequest::Tokens>& prompts) {
  std::int64_t n = 0;
  for (const auto& p : prompts) n = std::max(n, length(p));
  return n;
}

std::int64_t shortest(const std::vector<GenerateRequest::Tokens>& prompts) {
  std::int64_t n = length(prompts.front());
  for (const auto& p : prompts) n = std::min(n, length(p));
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
  expert_buffer_ = std::make_unique<ParamBuffer>(
      lane_, params_, *self_, ParamBufferOptions{.dtype = dtype, .gradients = false, .experts = true});
}

Shape Generator::cache_shape(const LayerSpec& layer, const GenerateRequest& request) const {
  return {request.positions(), static_cast<std::int64_t>(request.prompts.size()),
          key_columns(layer.self_attention, tp_.size())};
}

KvCache Generator::make_cache(const GenerateRequest& request) {
  KvCache cache;
  for (const LayerSpec& layer : spec_.layers) {
    const Shape shape = cache_shape(layer, request);
    cache.keys.push_back(lane_.alloc(dtype_, shape, "key/value cache"));
    cache.values.push_back(lane_.alloc(dtype_, shape, "key/value cache"));
  }
  return cache;
}

std::size_t Generator::cache_bytes(const GenerateRequest& request) const {
  std::size_t elems = 0;
  for (const LayerSpec& layer : spec_.layers)
    elems += 2 * static_cast<std::size_t>(cache_shape(layer, request).elems());
  return elems * bytes_of(dtype_);
}

std::vector<std::vector<double>> Generator::feed(const std::vector<GenerateRequest::Tokens>& rows,
                                                 std::int64_t first, std::int64_t count, KvCache& cache) {
  const auto b = static_cast<std::int64_t>(rows.size());
  Microbatch mb;
  mb.saved = SavedStack(false);
  mb.cache = &cache;
  mb.batch.first_position = first;
  mb.batch.tokens = lane_.alloc(DType::kI32, {b, count}, "tokens");
  std::vector<std::int32_t> tokens;
  for (const GenerateRequest::Tokens& row : rows) {
    // A row that has ended goes on with any token: nobody looks at it again.
    for (std::int64_t i = first; i < first + count; ++i) {
      tokens.push_back(i < length(row) ? row[static_cast<std::size_t>(i)] : 0);
    }
  }
  ops::from_host(lane_, tokens, mb.batch.tokens);
  const Tensor mine = model_->last_logits(lane_, mb);          // [1, b, V_padded/tp]
  const Tensor all = tp_.all_gather(lane_, mine).wait(lane_);  // [tp, b, V_padded/tp]
  if (lane_.meta() || tp_.rank() != 0) return {};
  const std::vector<double> values = ops::to_host<double>(lane_, all);
  std::vector<std::vector<double>> logits(rows.size());
  const std::int64_t part = all.dim(2);
  for (std::int64_t row = 0; row < b; ++row) {
    std::vector<double>& out = logits[static_cast<std::size_t>(row)];
    out.reserve(static_cast<std::size_t>(spec_.vocab_size));
    for (std::int64_t r = 0; r < tp_.size(); ++r) {
      const auto begin = values.begin() + (r * b + row) * part;
      const std::int64_t wanted = spec_.vocab_size - static_cast<std::int64_t>(out.size());
      out.insert(out.end(), begin, begin + std::min(part, wanted));
    }
  }
  return logits;
}

void Generator::agree(std::vector<std::int32_t>& chosen) {
  if (lane_.meta()) return;  // a plan has no tokens, and its groups take no host memory
  // They are wanted on the host, and go from host to host whatever the lane's device is.
  const Tensor t = Tensor::borrow(chosen.data(), DType::kI32, {static_cast<std::int64_t>(chosen.size())});
  tp_.broadcast(lane_, t, 0).wait(lane_);
}

void Generator::rehearse(const GenerateRequest& request) {
  if (request.max_new_tokens == 0) return;
  for (ParamBuffer* buffer : {buffer_.get(), expert_buffer_.get()}) {
    ops::fill(lane_, buffer->weights(), 0.01);
  }
  KvCache cache = make_cache(request);
  const std::int64_t read = shortest(request.prompts), rest = read % kPrefillPiece;
  if (read >= kPrefillPiece) feed(request.prompts, 0, kPrefillPiece, cache);
  if (rest > 0) feed(request.prompts, read - rest, rest, cache);
  feed(request.prompts, request.positions() - 1, 1, cache);
}

std::vector<GenerateRequest::Tokens> Generator::generate(const GenerateRequest& request,
                                                         const OnToken& on_token) {
  if (std::vector<std::string> problems = problems_of(request, config_); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  Sampler sampler(request.sampling);
  std::vector<GenerateRequest::Tokens> rows = request.prompts;
  if (request.max_new_tokens == 0) return rows;
  const std::int64_t together = shortest(rows);  // tokens that all rows read from their prompts

  const std::size_t b = rows.size();
  std::vector<bool> ended(b, false);
  KvCache cache = make_cache(request);
  for (std::int64_t fed = 0; std::find(ended.begin(), ended.end(), false) != ended.end();) {
    const std::int64_t count = fed < together ? std::min(kPrefillPiece, together - fed) : 1;
    const std::vector<std::vector<double>> logits = feed(rows, fed, count, cache);
    fed += count;
    if (fed < together) continue;

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

GenerationMemory generation_memory(DeviceKind device, Workers& workers, const ModelConfig& config,
                                   DType dtype, int tensor_parallel_rank, int tensor_parallel_size,
                                   std::span<const GenerateRequest> requests) {
  const std::unique_ptr<Arena> arena = Arena::meta(device);
  Lane lane{*arena, workers, {}};
  const std::unique_ptr<Communicator> tp =
      tensor_parallel_size == 1 ? self_communicator("tp")
                                : planned_communicator("tp", tensor_parallel_rank, tensor_parallel_size);
  std::int64_t positions = 1;
  for (const GenerateRequest& request : requests) positions = std::max(positions, request.positions());
  Generator generator(lane, *tp, config, dtype, positions);
  GenerationMemory memory{.weights = generator.weights().weights().bytes() +
                                     generator.expert_weights().weights().bytes()};
  for (const GenerateRequest& request : requests) {
    generator.generate(request);
    memory.cache = std::max(memory.cache, generator.cache_bytes(request));
  }
  memory.arena = arena->high_water();
  return memory;
}

}  // namespace weft
