#include "train/generate.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "core/log.hpp"
#include "data/tokenizer.hpp"
#include "infer/generator.hpp"
#include "infer/utf8_stream.hpp"
#include "interop/huggingface_weights.hpp"
#include "io/atomic_file.hpp"
#include "train/device_memory.hpp"
#include "train/launch.hpp"
#include "train/precision.hpp"
#include "train/rank_device.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Tokens = GenerateRequest::Tokens;

// Rows that run together, and how many prompt tokens the longest may have more than the shortest: those are
// read one by one.
constexpr std::size_t kMostRows = 16;
constexpr std::size_t kMostUneven = 64;

// A model folder of either kind.
struct Model {
  ModelConfig config;
  std::unique_ptr<WeightSource> weights;
  std::optional<Tokenizer> tokenizer;
  std::vector<std::int64_t> end_tokens;
};

Model open_model(const std::string& folder, bool needs_tokenizer) {
  Model model;
  const auto load_tokenizer = [&](const auto& load) {
    try {
      model.tokenizer.emplace(load());
    } catch (const ConfigError& e) {
      if (needs_tokenizer) throw;
      log_warn("no text, only token ids: {}", e.what());
    }
  };
  if (has_checkpoint(folder)) {
    auto reader = std::make_unique<CheckpointReader>(folder);
    model.config = model_config_from_json(reader->info().model);
    const std::string text = reader->extra_file("tokenizer.json");
    if (!text.empty())
      load_tokenizer([&] { return Tokenizer::from_json(text, folder + ": tokenizer.json"); });
    model.weights = std::move(reader);
  } else {
    auto weights = std::make_unique<HuggingFaceWeights>(folder);
    model.config = weights->reader().config();
    model.weights = std::move(weights);
    const fs::path path = folder;
    if (fs::exists(path / "tokenizer.json") || fs::exists(path / "vocab.json")) {
      load_tokenizer([&] { return Tokenizer::load(path); });
    }
    model.end_tokens = huggingface_end_tokens(path);
  }
  model.config = resolved(model.config);
  if (model.end_tokens.empty() && model.tokenizer) {
    if (const auto end = model.tokenizer->end_of_document()) model.end_tokens.push_back(*end);
  }
  return model;
}

// "1,2,3" or "1 2 3".
Tokens parse_ids(std::string_view text, const std::string& where) {
  Tokens ids;
  for (std::size_t at = 0; (at = text.find_first_not_of(", \t\r", at)) != text.npos;) {
    const std::size_t end = std::min(text.find_first_of(", \t\r", at), text.size());
    std::int32_t id = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end) {
      config_fail("{}: \"{}\" is not a token id", where, text.substr(at, end - at));
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

Tokens encode(const Tokenizer& tokenizer, std::string_view text) {
  // What a template puts before a text belongs before a prompt; what it puts after would end it.
  Tokens ids = tokenizer.model().prefix;
  const std::vector<std::int32_t> body = tokenizer.encode(text);
  ids.insert(ids.end(), body.begin(), body.end());
  return ids;
}

struct Prompt {
  Tokens tokens;
  std::string text;  // as it is shown; empty: decoded from the tokens
};

std::vector<Prompt> read_prompts(const GenerateOptions& options, const Model& model) {
  const auto of_text = [&](std::string text) {
    return Prompt{encode(*model.tokenizer, text), std::move(text)};
  };
  if (!options.prompt_tokens.empty()) return {{parse_ids(options.prompt_tokens, "--prompt-tokens"), ""}};
  if (options.prompt_given) {
    if (!model.tokenizer)
      config_fail("{} has no tokenizer: give --prompt-tokens instead of --prompt", options.load);
    return {of_text(options.prompt)};
  }
  std::vector<Prompt> prompts;
  const std::string file = read_file(options.prompt_file);
  for (std::size_t begin = 0; begin < file.size();) {
    const std::size_t end = std::min(file.find('\n', begin), file.size());
    std::string line = file.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    begin = end + 1;
    if (model.tokenizer) {
      prompts.push_back(of_text(std::move(line)));
    } else {
      prompts.push_back(
          {parse_ids(line, fmt::format("{}: line {}", options.prompt_file, prompts.size() + 1)), ""});
    }
  }
  return prompts;
}

// Shows rows in order while they grow together: the first unfinished one as it comes, later ones when their
// turn is.
class Display {
 public:
  Display(const Tokenizer* tokenizer, const std::vector<Prompt>& prompts,
          const std::function<void(std::string_view)>& print)
      : tokenizer_(tokenizer), print_(print), rows_(prompts.size()) {
    for (std::size_t row = 0; row < prompts.size(); ++row) {
      if (tokenizer_ != nullptr && !prompts[row].text.empty()) {
        rows_[row].waiting = rows_[row].stream.push(prompts[row].text);
      } else {
        for (const std::int32_t token : prompts[row].tokens) add(row, token);
      }
    }
    show();
  }

  void token(std::size_t row, std::int32_t token, bool last) {
    add(row, token);
    if (last) end(row);
    if (row == current_) show();
  }
  void end(std::size_t row) {
    rows_[row].waiting += rows_[row].stream.finish() + "\n";
    rows_[row].ended = true;
  }
  void show() {
    for (; current_ < rows_.size(); ++current_) {
      Row& row = rows_[current_];
      if (!row.waiting.empty()) print_(row.waiting);
      row.waiting.clear();
      if (!row.ended) return;
    }
  }

 private:
  struct Row {
    Utf8Stream stream;
    std::string waiting;
    bool any = false, ended = false;
  };

  void add(std::size_t index, std::int32_t token) {
    Row& row = rows_[index];
    if (tokenizer_ == nullptr) {
      row.waiting += fmt::format("{}{}", row.any ? " " : "", token);
    } else {
      row.waiting += row.stream.push(bytes_of_token(token));
    }
    row.any = true;
  }
  // A vocabulary may have ids that the tokenizer does not know: padding of an embedding.
  std::string bytes_of_token(std::int32_t token) const {
    try {
      return tokenizer_->is_special(token) ? "" : std::string(tokenizer_->token_bytes(token));
    } catch (const Error&) {
      return "\uFFFD";
    }
  }

  const Tokenizer* tokenizer_;
  const std::function<void(std::string_view)>& print_;
  std::vector<Row> rows_;
  std::size_t current_ = 0;
};

// Prompts of similar length run together. Sequence numbers are those of the prompts, so the draws do not
// depend on the grouping.
std::vector<GenerateRequest> group(const GenerateRequest& common, const std::vector<Prompt>& prompts) {
  std::vector<std::size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return prompts[a].tokens.size() < prompts[b].tokens.size();
  });
  std::vector<GenerateRequest> groups;
  for (const std::size_t i : order) {
    const Tokens& tokens = prompts[i].tokens;
    if (groups.empty() || groups.back().prompts.size() == kMostRows ||
        tokens.size() - groups.back().prompts[0].size() > kMostUneven) {
      groups.push_back(common);
      groups.back().prompts.clear();
    }
    groups.back().prompts.push_back(tokens);
    groups.back().sequences.push_back(i);
  }
  return groups;
}

std::vector<std::string> layout_problems(const GenerateOptions& options, const ModelConfig& model) {
  TrainConfig layout;
  layout.parallel = options.parallel;
  std::vector<std::string> problems = unsupported_yet(layout);
  const int tp = static_cast<int>(options.parallel.tensor_model_parallel_size);
  if (options.parallel.pipeline_model_parallel_size > 1) {
    problems.push_back(fmt::format(
        "--pipeline-model-parallel-size {}: generation runs on tensor-parallel ranks of one stage; "
        "leave it out (a checkpoint of any layout loads)",
        options.parallel.pipeline_model_parallel_size));
  } else if (world_size(options.parallel) != tp) {
    problems.push_back(fmt::format("--ranks {}: generation runs on --tensor-model-parallel-size {} ranks",
                                   options.parallel.ranks, tp));
  }
  for (const std::string& p : validate(inference_spec(model), tp, {1, tp})) problems.push_back(p);
  return problems;
}

void check_one_prompt(const GenerateOptions& options) {
  const int given = options.prompt_given + !options.prompt_tokens.empty() + !options.prompt_file.empty();
  if (given != 1) {
    config_fail("{} of --prompt, --prompt-tokens and --prompt-file given: give one",
                given == 0 ? "none" : "several");
  }
}

std::string lines_of(const std::vector<Tokens>& rows) {
  std::string text;
  for (const Tokens& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : " ", row[i]);
    text += "\n";
  }
  return text;
}

// What the ranks share; rank 0 alone writes.
struct Generation {
  const GenerateOptions& options;
  const Model& model;
  const std::vector<Prompt>& prompts;
  const std::function<void(std::string_view)>& print;
  std::vector<GenerateRequest> groups;
  DeviceKind device;
  DType dtype;
  int threads;                 // of a rank
  std::int64_t positions = 0;  // the most of any row
  std::vector<MemoryNeed> needs;
  std::vector<Tokens> rows;
  GenerateSummary summary;
};

MemoryNeed need_of(const Generation& run, int rank, int ranks) {
  Workers planner(run.threads);
  const GenerationMemory m =
      generation_memory(run.device, planner, run.model.config, run.dtype, rank, ranks, run.groups);
  MemoryNeed need{.arena = m.arena,
                  .items = {{"weights", m.weights},
                            {"key/value cache", m.cache},
                            {"activations, logits and scratch", m.arena - m.weights - m.cache}},
                  .fixes = {}};
  if (bytes_of(run.dtype) > 2) need.fixes.emplace_back("--dtype bf16");
  need.fixes.emplace_back("more GPUs (--tensor-model-parallel-size)");
  need.fixes.emplace_back("fewer or shorter prompts, or fewer --max-new-tokens");
  return need;
}

void generate_rank(Generation& run, Communicator& world) {
  Workers workers(run.threads);
  // Every group of prompts brings shapes of its own: no trials of matrix products.
  RankDevice device(run.device, world.rank(), run.needs[static_cast<std::size_t>(world.rank())], workers,
                    false);
  Lane& lane = device.lane();
  const auto rehearse = [&] {
    const auto planned = planned_communicator("tp", world.rank(), world.size());
    Generator generator(lane, *planned, run.model.config, run.dtype, run.positions);
    for (const GenerateRequest& request : run.groups) generator.rehearse(request);
  };
  const auto alone = self_communicator("tp");
  Communicator& tp = world.size() == 1
                         ? *alone
                         : device.world(world, rehearse, run.options.parallel.distributed_timeout_seconds);
  Generator generator(lane, tp, run.model.config, run.dtype, run.positions);
  const auto alone_dp = self_communicator("dp");
  load_weights(lane, *run.model.weights,
               {{generator.weights(), nullptr, *alone_dp}, {generator.expert_weights(), nullptr, *alone_dp}});

  const bool shows = tp.rank() == 0;
  std::optional<Display> display;
  if (shows) display.emplace(run.model.tokenizer ? &*run.model.tokenizer : nullptr, run.prompts, run.print);
  const auto begin = std::chrono::steady_clock::now();
  for (const GenerateRequest& request : run.groups) {
    std::vector<Tokens> out = generator.generate(request, [&](const GeneratedToken& t) {
      if (!shows) return;
      display->token(request.sequences[t.row], t.token, t.last);
      ++run.summary.new_tokens;
    });
    if (!shows) continue;
    for (std::size_t row = 0; row < out.size(); ++row) {
      if (request.max_new_tokens == 0) display->end(request.sequences[row]);
      run.rows[request.sequences[row]] = std::move(out[row]);
    }
  }
  if (!shows) return;
  display->show();
  run.summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

GenerateSummary run_generate(const GenerateOptions& given,
                             const std::function<void(std::string_view)>& print) {
  GenerateOptions options = given;
  check_one_prompt(options);
  if (!options.dtype.empty()) parse_dtype(options.dtype);  // a wrong one is known before any file is read
  const Launch launch(options.parallel);
  if (launch.processes()) {
    config_fail(
        "weft generate runs its ranks as threads of one process: start it without mpirun or srun, with "
        "--ranks {}",
        options.parallel.ranks);
  }
  const Model model = open_model(options.load, options.prompt_tokens.empty());
  const std::vector<Prompt> prompts = read_prompts(options, model);

  GenerateRequest common{.max_new_tokens = options.max_new_tokens, .sampling = options.sampling};
  if (!options.ignore_eos) common.end_tokens = model.end_tokens;
  for (const Prompt& prompt : prompts) common.prompts.push_back(prompt.tokens);
  std::vector<std::string> problems = problems_of(common, model.config);
  for (const std::string& p : layout_problems(options, model.config)) problems.push_back(p);
  if (!problems.empty()) throw ConfigError(std::move(problems));
  const int ranks = static_cast<int>(options.parallel.tensor_model_parallel_size);
  const DeviceKind device = choose_device(options.parallel, ranks);
  const DType dtype = !options.dtype.empty()        ? parse_dtype(options.dtype)
                      : device == DeviceKind::kCuda ? DType::kBF16
                                                    : DType::kF32;
  if (model.config.position_embedding == PositionEmbedding::kRope &&
      common.positions() > model.config.max_position_embeddings) {
    log_warn("{} positions, but the model was made for {}: what comes after may make little sense",
             common.positions(), model.config.max_position_embeddings);
  }

  std::optional<AtomicFile> tokens_out;  // a path that cannot be written is known before the work
  if (!options.tokens_out.empty()) {
    check_output("--tokens-out", options.tokens_out, {options.prompt_file, options.load});
    tokens_out.emplace(options.tokens_out);
  }
  Generation run{.options = options,
                 .model = model,
                 .prompts = prompts,
                 .print = print,
                 .groups = group(common, prompts),
                 .device = device,
                 .dtype = dtype,
                 .threads = threads_per_rank(options.cpu_threads, ranks),
                 .positions = common.positions(),
                 .needs = {},
                 .rows = std::vector<Tokens>(prompts.size()),
                 .summary = {.prompts = static_cast<std::int64_t>(prompts.size())}};
  for (int rank = 0; rank < ranks; ++rank) run.needs.push_back(need_of(run, rank, ranks));
  log_info("{}: {} parameters; {} in {}; memory of a rank {:.1f} MiB", options.load,
           parameter_count(model.config), name_of(device), name_of(dtype),
           static_cast<double>(run.needs[0].arena) / (1 << 20));
  launch.run({.timeout_seconds = options.parallel.distributed_timeout_seconds},
             [&](Communicator& world) { generate_rank(run, world); });
  if (tokens_out) {
    tokens_out->write(lines_of(run.rows));
    tokens_out->commit();
  }
  return run.summary;
}

}  // namespace weft
