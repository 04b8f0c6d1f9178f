// weft tokenizer train | encode | decode
#include "data/tokenizer.hpp"

#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "cli/commands.hpp"
#include "core/check.hpp"
#include "core/log.hpp"
#include "data/bpe_trainer.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

std::string read_input() {
  std::string text;
  std::array<char, 1 << 16> block{};
  for (std::size_t n = 0; (n = std::fread(block.data(), 1, block.size(), stdin)) > 0;)
    text.append(block.data(), n);
  if (std::ferror(stdin) != 0) config_fail("standard input cannot be read");
  return text;
}

// Calls use(piece) for the whole input, or for each line of it without its '\n'.
template <class Use>
void for_each_piece(const std::string& input, bool lines, Use&& use) {
  if (!lines) {
    use(std::string_view(input), std::int64_t{1});
    return;
  }
  std::int64_t number = 1;
  for (std::size_t begin = 0; begin < input.size(); ++number) {
    const std::size_t end = std::min(input.find('\n', begin), input.size());
    use(std::string_view(input).substr(begin, end - begin), number);
    begin = end + 1;
  }
}

int train(Args args) {
  std::vector<std::string> inputs;
  std::string out;
  BpeTrainOptions train_options;
  OptionSet options("weft tokenizer train",
                    "Learns a byte-level BPE tokenizer from text and writes it as tokenizer.json.");
  options.topic("options");
  options.texts("input", inputs, "FILE...", "text files; of .jsonl files the \"text\" of each line")
      .required();
  options
      .integer("vocab-size", train_options.vocab_size, {.low = 1},
               "bytes, merges and special tokens together")
      .required();
  options.text("out", out, "FILE", "the tokenizer.json to write").required();
  options.texts("special-tokens", train_options.special_tokens, "TOKEN...",
                "tokens outside of text; the first ends documents");
  options.integer("min-frequency", train_options.min_frequency, {.low = 1},
                  "pairs rarer than this are not merged");
  if (answered(options, args)) return 0;
  const std::vector<std::filesystem::path> paths(inputs.begin(), inputs.end());
  check_output("--out", out, paths);
  const Tokenizer tokenizer = train_bpe(paths, train_options);
  tokenizer.save(out);
  log_info("{}: {} tokens, {} of them merges", out, tokenizer.vocab_size(), tokenizer.model().merges.size());
  return 0;
}

void add_tokenizer_option(OptionSet& options, std::string& path) {
  options.topic("options");
  options.text("tokenizer", path, "PATH", "tokenizer.json, or the folder it is in").required();
}

int encode(Args args) {
  std::string path;
  bool lines = false, special = false;
  OptionSet options("weft tokenizer encode",
                    "Text on standard input to token ids on standard output, separated by spaces.");
  add_tokenizer_option(options, path);
  options.flag("lines", lines, "each line by itself, without its line end: one line of ids per line");
  options.flag("add-special-tokens", special, "put the tokenizer's template (BOS, EOS) around each text");
  if (answered(options, args)) return 0;
  const Tokenizer tokenizer = Tokenizer::load(path);
  for_each_piece(read_input(), lines, [&](std::string_view text, std::int64_t) {
    std::string line;
    for (const std::int32_t id : tokenizer.encode(text, special)) {
      if (!line.empty()) line += ' ';
      line += std::to_string(id);
    }
    print(line + '\n');
  });
  return 0;
}

// The ids of a text of numbers. `place` ("line 3: ") goes before what is wrong with it.
std::vector<std::int32_t> ids_of(std::string_view text, const std::string& place) {
  std::vector<std::int32_t> ids;
  constexpr std::string_view kSpace = " \t\r\n";
  for (std::size_t begin = text.find_first_not_of(kSpace); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    std::int32_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || stop != word.data() + word.size()) {
      config_fail("standard input: {}'{}' is not a token id", place, word.substr(0, 40));
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kSpace, end);
  }
  return ids;
}

int decode(Args args) {
  std::string path;
  bool lines = false, skip = false;
  OptionSet options("weft tokenizer decode",
                    "Token ids on standard input to the bytes they stand for on standard output.");
  add_tokenizer_option(options, path);
  options.flag("lines", lines, "each line by itself: one line of text per line of ids");
  options.flag("skip-special-tokens", skip, "leave special tokens out");
  if (answered(options, args)) return 0;
  const Tokenizer tokenizer = Tokenizer::load(path);
  for_each_piece(read_input(), lines, [&](std::string_view text, std::int64_t number) {
    const std::string place = lines ? fmt::format("line {}: ", number) : "";
    const std::vector<std::int32_t> ids = ids_of(text, place);
    std::string decoded;
    try {
      decoded = tokenizer.decode(ids, skip);
    } catch (const Error& e) {
      config_fail("standard input: {}{}", place, e.what());
    }
    if (lines) decoded += '\n';
    print(decoded);
  });
  return 0;
}

constexpr std::array kTokenizerCommands = {
    Command{"train", "learn a tokenizer from text", train},
    Command{"encode", "text to ids", encode},
    Command{"decode", "ids to text", decode},
};

}  // namespace

int run_tokenizer(Args args) {
  return run_one_of("weft tokenizer", "Byte-level BPE tokenizers in the form of tokenizer.json.",
                    kTokenizerCommands, args);
}

}  // namespace weft
