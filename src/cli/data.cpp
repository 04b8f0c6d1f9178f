// weft data build | inspect | sample
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <numeric>
#include <vector>

#include "cli/commands.hpp"
#include "core/check.hpp"
#include "core/log.hpp"
#include "data/gpt_dataset.hpp"
#include "data/indexed_dataset.hpp"
#include "data/text_corpus.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

int build(Args args) {
  std::vector<std::string> inputs;
  std::string tokenizer_path, out;
  BuildOptions build_options;
  std::int64_t workers = 1;
  OptionSet options("weft data build",
                    "Tokenizes text into PREFIX.bin and PREFIX.idx, one sequence per document.");
  options.topic("options");
  options
      .texts("input", inputs, "FILE...",
             ".txt: documents end at blank lines; .jsonl: the \"text\" of each line is one")
      .required();
  options.text("tokenizer", tokenizer_path, "PATH", "tokenizer.json, or the folder it is in").required();
  options.text("out", out, "PREFIX", "path of the files, without .bin and .idx").required();
  options.flag("append-eod", build_options.append_eod, "put the end-of-document token after each document");
  options.integer("workers", workers, {.low = 1, .high = 1024},
                  "threads that tokenize; any number gives the same files");
  if (answered(options, args)) return 0;
  build_options.workers = static_cast<int>(workers);
  const std::vector<std::filesystem::path> paths(inputs.begin(), inputs.end());
  if (std::filesystem::path(out).filename().empty()) {
    config_fail("--out {}: names a folder; give the path of the files without .bin and .idx", out);
  }
  for (const char* end : {".bin", ".idx"}) check_output("--out", out + end, paths);
  const BuildReport report = build_dataset(paths, Tokenizer::load(tokenizer_path), out, build_options);
  const double bytes_per_token =
      report.tokens > 0 ? static_cast<double>(report.text_bytes) / static_cast<double>(report.tokens) : 0;
  log_info("{}.bin: {} documents, {} tokens, {:.3f} bytes of text per token", out, report.documents,
           report.tokens, bytes_per_token);
  return 0;
}

// Lowest and highest id of all tokens.
std::pair<std::int32_t, std::int32_t> id_range(const IndexedDataset& data) {
  std::int32_t low = 0, high = 0;
  bool any = false;
  std::vector<std::int32_t> tokens;
  for (std::int64_t s = 0; s < data.documents(); ++s) {
    const std::int32_t length = data.lengths()[static_cast<std::size_t>(s)];
    if (length == 0) continue;
    tokens.resize(static_cast<std::size_t>(length));
    data.read(s, 0, tokens);
    const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
    low = any ? std::min(low, *least) : *least;
    high = any ? std::max(high, *most) : *most;
    any = true;
  }
  return {low, high};
}

int inspect(Args args) {
  std::string prefix;
  bool ids = false;
  OptionSet options("weft data inspect",
                    "What PREFIX.bin and PREFIX.idx hold, as name=value lines. Every field is checked.");
  options.topic("options");
  options.argument("PREFIX", prefix, "path of the files, without .bin and .idx");
  options.flag("ids", ids, "read all tokens for the lowest and highest id");
  if (answered(options, args)) return 0;
  const IndexedDataset data(prefix);
  const auto lengths = data.lengths();
  const std::int64_t sequences = data.documents(), tokens = data.tokens();
  std::string text = fmt::format("type={}\nsequences={}\ndocuments={}\ntokens={}\n", name_of(data.type()),
                                 sequences, data.document_table().size() - 1, tokens);
  if (!lengths.empty()) {
    const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
    text +=
        fmt::format("shortest_sequence={}\nlongest_sequence={}\nmean_sequence={:.9g}\nempty_sequences={}\n",
                    *least, *most, static_cast<double>(tokens) / static_cast<double>(sequences),
                    std::count(lengths.begin(), lengths.end(), 0));
  }
  text += fmt::format("bin_bytes={}\nidx_bytes={}\n", data.bin_bytes().size(),
                      std::filesystem::file_size(idx_path(prefix)));
  if (ids && tokens > 0) {
    const auto [low, high] = id_range(data);
    text += fmt::format("lowest_id={}\nhighest_id={}\n", low, high);
  }
  print(text);
  return 0;
}

std::string line_of(const std::vector<std::int32_t>& ids) {
  std::string line;
  for (const std::int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  return line + '\n';
}

int sample(Args args) {
  std::string prefix;
  GptDatasetOptions dataset_options;
  std::int64_t seed = dataset_options.seed, samples = 0, index = -1, count = 1;
  bool labels = false;
  OptionSet options(
      "weft data sample",
      "Training samples of PREFIX.bin and .idx, all documents in one part: the ids of each on one line.");
  options.topic("options");
  options.argument("PREFIX", prefix, "path of the files, without .bin and .idx");
  options.integer("seq-length", dataset_options.sequence_length, {.low = 1}, "tokens of a sample").required();
  options.integer("seed", seed, {.low = 0, .high = 0xffffffff}, "of the order of documents and samples");
  options.integer("num-samples", samples, {.low = 1}, "samples that the training needs")
      .otherwise("one pass");
  options.integer("index", index, {.low = 0}, "number of the first sample to print, from 0").required();
  options.integer("count", count, {.low = 1}, "how many to print");
  options.flag("labels", labels, "print each sample's labels on a second line");
  if (answered(options, args)) return 0;
  dataset_options.seed = static_cast<std::uint32_t>(seed);
  const auto source = std::make_shared<IndexedDataset>(prefix);
  std::vector<std::int32_t> documents(static_cast<std::size_t>(source->documents()));
  std::iota(documents.begin(), documents.end(), 0);
  const GptDataset dataset(
      source, documents, samples > 0 ? std::optional<std::int64_t>(samples) : std::nullopt, dataset_options);
  if (index + count > dataset.size()) {
    config_fail("--index {} and --count {} reach beyond the {} samples of --seq-length {} that {} gives",
                index, count, dataset.size(), dataset_options.sequence_length, prefix);
  }
  GptSample one;
  for (std::int64_t i = index; i < index + count; ++i) {
    dataset.sample(i, one);
    print(line_of(one.tokens));
    if (labels) print(line_of(one.labels));
  }
  return 0;
}

constexpr std::array kDataCommands = {
    Command{"build", "tokenize text into .bin/.idx", build},
    Command{"inspect", "what a .bin/.idx pair holds", inspect},
    Command{"sample", "print training samples", sample},
};

}  // namespace

int run_data(Args args) {
  return run_one_of("weft data", "Token files in Megatron's .bin/.idx form.", kDataCommands, args);
}

}  // namespace weft
