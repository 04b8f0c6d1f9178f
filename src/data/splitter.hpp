// Splitter: cuts text into the words that byte-pair merges stay inside, by a regular expression as tokenizer
// files state it (the dialect of Hugging Face tokenizers, run by PCRE2).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// GPT-2's pattern.
extern const std::string_view kGpt2Pattern;

class Splitter {
 public:
  // A ConfigError that holds the pattern and the place of the fault when it cannot be compiled.
  explicit Splitter(const std::string& pattern);
  ~Splitter();
  Splitter(Splitter&&) noexcept;

  const std::string& pattern() const { return pattern_; }

  // What a thread needs to use a Splitter.
  class Scratch {
   public:
    explicit Scratch(const Splitter& splitter);
    ~Scratch();
    Scratch(Scratch&&) noexcept;

   private:
    friend class Splitter;
    struct State;
    std::unique_ptr<State> state_;
  };

  // Appends the pieces of `text`, in order; joined they are `text`. Matches are pieces, and so is what lies
  // between them. Bytes that are not UTF-8 match nothing: a run of them is a piece, and the text on either
  // side is split apart from it.
  void split(std::string_view text, std::vector<std::string_view>& pieces, Scratch& scratch) const;

 private:
  void split_valid(std::string_view text, std::vector<std::string_view>& pieces, Scratch& scratch) const;

  struct Code;
  std::string pattern_;
  std::unique_ptr<Code> code_;
};

}  // namespace weft
