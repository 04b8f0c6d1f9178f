#include "train/run_data.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/log.hpp"
#include "data/blend.hpp"
#include "data/indexed_dataset.hpp"
#include "data/ngram.hpp"
#include "data/text_corpus.hpp"
#include "data/tokenizer.hpp"
#include "io/atomic_file.hpp"
#include "train/given_batches.hpp"
#include "train/rank_device.hpp"
#include "train/run_checkpoint.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

// A GptDataset; validation may be read around its end again.
class DatasetSource final : public SampleSource {
 public:
  DatasetSource(std::unique_ptr<SampleSet> dataset, SampleOrder order)
      : dataset_(std::move(dataset)), order_(order) {}

  std::unique_ptr<SampleReader> reader() const override {
    return std::make_unique<Reader>(*dataset_, order_);
  }
  std::int64_t samples() const override { return dataset_->size(); }

 private:
  class Reader final : public SampleReader {
   public:
    Reader(const SampleSet& dataset, SampleOrder order) : loader_(dataset, order) {}
    void load(const BatchShape& shape, std::int64_t consumed, std::int64_t microbatch, std::int64_t dp_rank,
              Batch& out) override {
      loader_.load(shape, consumed, microbatch, dp_rank, out);
    }

   private:
    Loader loader_;
  };
  std::unique_ptr<SampleSet> dataset_;
  SampleOrder order_;
};

// Null where there is no dataset.
std::unique_ptr<SampleSource> dataset_source(std::unique_ptr<SampleSet> dataset, SampleOrder order) {
  if (dataset == nullptr) return nullptr;
  return std::make_unique<DatasetSource>(std::move(dataset), order);
}

std::int64_t training_samples(const TrainConfig& c) {
  return c.training.train_samples > 0 ? c.training.train_samples
                                      : c.training.train_iters * c.training.global_batch_size;
}

std::int64_t evaluation_samples(const TrainConfig& c) {
  const std::int64_t iterations = c.training.train_iters;
  const std::int64_t evaluations =
      c.training.eval_interval > 0 ? iterations / c.training.eval_interval + 1 : 1;
  return c.training.eval_iters * c.training.global_batch_size * evaluations;
}

GptDatasetOptions dataset_options(const TrainConfig& c) {
  GptDatasetOptions options;
  options.sequence_length = c.data.seq_length;
  options.seed = static_cast<std::uint32_t>(c.training.seed);
  options.vocabulary = c.model.vocab_size;
  options.reset_position_ids = c.data.reset_position_ids;
  options.reset_attention_mask = c.data.reset_attention_mask;
  options.mask_end_of_document = c.data.eod_mask_loss;
  return options;
}

// One process at a time, among those of one machine that use the same file. Where a lock cannot be had, all
// do the work, to the same end.
class Turn {
 public:
  explicit Turn(const fs::path& file) : descriptor_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ >= 0) ::flock(descriptor_, LOCK_EX);
  }
  ~Turn() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  int descriptor_;
};

// The tokens of a text file, kept beside it (or in --data-cache-path) under a name made of both contents.
std::shared_ptr<const TokenSource> tokenized_text(const DataConfig& data, const Tokenizer& tokenizer) {
  const fs::path text = data.text_file;
  const std::string bytes = read_file(text);
  const std::string model = tokenizer.to_json();
  const fs::path folder = data.data_cache_path.empty() ? text.parent_path() : fs::path(data.data_cache_path);
  const fs::path prefix =
      folder / fmt::format("{}.{:016x}{:016x}", text.filename().string(),
                           checksum(bytes.data(), bytes.size()), checksum(model.data(), model.size()));
  const Turn turn(text);  // of several processes the first one tokenizes
  if (!fs::exists(prefix.string() + ".idx") || !fs::exists(prefix.string() + ".bin")) {
    const std::array<fs::path, 1> inputs{text};
    try {
      build_dataset(inputs, tokenizer, prefix);
    } catch (const ConfigError&) {
      throw;
    } catch (const Error& error) {  // a folder that cannot be written: the cache is a convenience
      log_warn("{}; the tokens are kept in memory (--data-cache-path names another folder)", error.what());
      return std::make_shared<MemoryTokens>(tokenize_files(inputs, tokenizer));
    }
  }
  return std::make_shared<IndexedDataset>(prefix);
}

double bytes_per_token(const Tokenizer& tokenizer, const std::vector<std::int32_t>& tokens) {
  double bytes = 0;
  for (const std::int32_t id : tokens) bytes += static_cast<double>(tokenizer.token_bytes(id).size());
  return bytes / static_cast<double>(std::max<std::size_t>(tokens.size(), 1));
}

void use_vocabulary(TrainConfig& config, const Tokenizer& tokenizer) {
  if (config.model.vocab_size == 0) config.model.vocab_size = tokenizer.vocab_size();
  if (config.model.vocab_size < tokenizer.vocab_size()) {
    config_fail(
        "--vocab-size {} is smaller than the {} ids of --tokenizer-model {}: leave it out or raise it",
        config.model.vocab_size, tokenizer.vocab_size(), config.data.tokenizer_model);
  }
}

RunData open_text(TrainConfig& config) {
  if (config.data.tokenizer_model.empty()) {
    config_fail(
        "--text-file {} needs --tokenizer-model: make one with 'weft tokenizer train --input {} --vocab-size "
        "4096 --out tokenizer.json'",
        config.data.text_file, config.data.text_file);
  }
  const Tokenizer tokenizer = Tokenizer::load(config.data.tokenizer_model);
  use_vocabulary(config, tokenizer);
  const std::shared_ptr<const TokenSource> source = tokenized_text(config.data, tokenizer);

  GptDatasetOptions options = dataset_options(config);
  options.drop_last_partial = false;  // every token of the validation part counts
  options.end_of_document = tokenizer.end_of_document();
  const std::array<SplitRange, 3> ranges = split_ranges(config.data.split, source->tokens());
  const std::int64_t s = config.data.seq_length;
  const bool validate = ranges[1].end - ranges[1].begin > 1 && config.training.eval_iters > 0;
  if (ranges[0].end - ranges[0].begin < s + 1) {
    config_fail(
        "--text-file {}: its training part ({} of {} tokens, --split {}) is shorter than one sample of "
        "--seq-length {} + 1 tokens: use a longer text or a shorter sequence",
        config.data.text_file, ranges[0].end - ranges[0].begin, source->tokens(), config.data.split, s);
  }
  GptSplits splits = build_gpt_splits(
      source, config.data.split, SplitBy::kTokens,
      {training_samples(config), validate ? std::nullopt : std::optional<std::int64_t>(0), std::int64_t{0}},
      options);
  RunData run;
  run.training = std::make_unique<DatasetSource>(std::move(splits.train), SampleOrder::kSingle);
  run.tokenizer_json = tokenizer.to_json();
  if (splits.validation != nullptr) {
    run.validation = std::make_unique<DatasetSource>(std::move(splits.validation), SampleOrder::kCyclic);
    run.whole_validation = true;
    const std::vector<std::int32_t> all = read_all(*source);
    const auto part = [&](int i) {
      return std::vector<std::int32_t>(all.begin() + ranges[static_cast<std::size_t>(i)].begin,
                                       all.begin() + ranges[static_cast<std::size_t>(i)].end);
    };
    const std::vector<std::int32_t> validation = part(1);
    const NgramScores scores = ngram_scores(part(0), validation, config.model.vocab_size);
    run.baselines = TextBaselines{scores.unigram, scores.bigram, bytes_per_token(tokenizer, validation)};
  }
  return run;
}

// The options that go by where documents end have a token that says so.
void check_documents(const DataConfig& data, const std::optional<std::int32_t>& end_of_document) {
  const std::string flags = document_flags(data);
  if (flags.empty() || end_of_document) return;
  if (data.tokenizer_model.empty()) {
    config_fail(
        "{}: which token ends a document, only a --tokenizer-model says: give the one of --data-path {}",
        flags, data.data_path.front());
  }
  config_fail("{}: --tokenizer-model {} has no token that ends documents (as <|endoftext|>)", flags,
              data.tokenizer_model);
}

RunData open_indexed(TrainConfig& config) {
  RunData run;
  GptDatasetOptions options = dataset_options(config);
  if (!config.data.tokenizer_model.empty()) {
    const Tokenizer tokenizer = Tokenizer::load(config.data.tokenizer_model);
    use_vocabulary(config, tokenizer);
    options.vocabulary = config.model.vocab_size;
    options.end_of_document = tokenizer.end_of_document();
    run.tokenizer_json = tokenizer.to_json();
  }
  check_documents(config.data, options.end_of_document);
  const BlendWords words = parse_blend(config.data.data_path);
  std::vector<std::shared_ptr<const TokenSource>> sources;
  for (const std::string& prefix : words.prefixes)
    sources.push_back(std::make_shared<IndexedDataset>(prefix));
  const bool validate = config.training.eval_iters > 0 && config.training.eval_interval > 0;
  const std::array<std::optional<std::int64_t>, 3> samples{
      training_samples(config), validate ? evaluation_samples(config) : 0, std::int64_t{0}};
  if (sources.size() == 1) {
    GptSplits splits =
        build_gpt_splits(sources.front(), config.data.split, SplitBy::kDocuments, samples, options);
    run.training = dataset_source(std::move(splits.train), SampleOrder::kSingle);
    run.validation = dataset_source(std::move(splits.validation), SampleOrder::kSingle);
  } else {
    BlendedSplits splits = build_blended_splits(sources, words.weights, config.data.split, samples, options);
    run.training = dataset_source(std::move(splits.train), SampleOrder::kSingle);
    run.validation = dataset_source(std::move(splits.validation), SampleOrder::kSingle);
  }
  return run;
}

}  // namespace

RunData open_run_data(TrainConfig& config) {
  if (!config.data.batches.empty()) return open_given_batches(config);
  return config.data.text_file.empty() ? open_indexed(config) : open_text(config);
}

RunData begin_run(TrainConfig& config, int ranks_on_machine) {
  if (!config.checkpoint.load.empty()) use_loaded_model(config);
  RunData data = open_run_data(config);
  config = resolved(config);
  if (std::vector<std::string> problems = problems_of(config); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  choose_device(config, ranks_on_machine);
  return data;
}

}  // namespace weft
