// Training of byte-level BPE tokenizers: GPT-2's splitting, the merges of Sennrich et al. (2016) over counted
// words.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.hpp"

namespace weft {

struct BpeTrainOptions {
  std::int64_t vocab_size = 32000;                           // bytes, merges and special tokens together
  std::vector<std::string> special_tokens{"<|endoftext|>"};  // get the last ids
  std::int64_t min_frequency = 1;                            // pairs rarer than this are not merged
};

// Counts words of any amount of text, then learns the merges. Each step merges the most frequent pair; of
// equally frequent ones the smallest by (left id, right id). Ids: the 256 bytes in the order of their
// byte-level characters, then one per merge, then the special tokens. The result depends only on the texts,
// not on their order.
class BpeTrainer {
 public:
  BpeTrainer();
  ~BpeTrainer();

  // A whole text: words do not reach from one add to the next.
  void add(std::string_view text);
  // A whole file in bounded memory. `.jsonl`: the "text" of each line; anything else is one text.
  void add_file(const std::filesystem::path& path);
  // ConfigError when vocab_size has no room for 256 bytes and the special tokens, or special tokens clash. A
  // corpus without enough pairs gives a smaller vocabulary, and a warning says so.
  Tokenizer train(const BpeTrainOptions& options) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Tokenizer train_bpe(std::span<const std::filesystem::path> files, const BpeTrainOptions& options);

}  // namespace weft
