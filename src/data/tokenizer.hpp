// Byte-level BPE tokenizers in the form of Hugging Face's tokenizer.json, or GPT-2's vocab.json + merges.txt.
// Text is bytes: encode followed by decode gives the same bytes, whether or not they are UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// What a tokenizer is, as plain values.
struct TokenizerModel {
  struct AddedToken {
    std::int32_t id = 0;
    std::string content;  // matched as it stands, before any splitting
    bool special = true;
  };
  std::vector<std::string> tokens{};  // bytes by id; empty: no token has this id (added ones are not here)
  std::vector<std::array<std::int32_t, 2>> merges{};  // pairs of ids, first merged first
  std::vector<AddedToken> added{};
  std::vector<std::string> patterns{};  // splitting patterns, each applied to the pieces of the one before
  bool add_prefix_space = false;        // a space is put before text that does not start with one
  bool ignore_merges = false;           // a piece that is a token as a whole is not built from merges
  std::vector<std::int32_t> prefix{}, suffix{};  // ids that the template puts around a text
};

class Tokenizer {
 public:
  // path: a tokenizer.json, or a folder that holds one, or a folder with vocab.json and merges.txt. Missing
  // files, faults and features that are not supported are ConfigErrors that name file and field.
  static Tokenizer load(const std::filesystem::path& path);
  // GPT-2's two files. special_tokens get their ids from the vocabulary, or new ids after it.
  static Tokenizer load_vocab_and_merges(const std::filesystem::path& vocab,
                                         const std::filesystem::path& merges,
                                         std::span<const std::string> special_tokens);
  // The text of a tokenizer.json; `name` is used in messages.
  static Tokenizer from_json(std::string_view text, const std::string& name);
  // `name` is used in messages (ConfigErrors: merges whose parts or result are no tokens, clashing ids).
  explicit Tokenizer(TokenizerModel model, const std::string& name = "tokenizer");
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  // One more than the highest id, added tokens included.
  std::int64_t vocab_size() const;
  const TokenizerModel& model() const;

  // The ids of a text. Added tokens in the text become their ids. with_template also puts the template's ids
  // around it. For many texts use an Encoder, which remembers words.
  std::vector<std::int32_t> encode(std::string_view text, bool with_template = false) const;
  // The joined bytes of the ids; skip_special leaves special tokens out. An id that is negative, at or beyond
  // vocab_size() or has no token is an Error that names it and the size.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
  // The bytes of one id; errors as in decode.
  std::string_view token_bytes(std::int32_t id) const;
  // How the token is written in tokenizer files: "Ġthe".
  std::string token_spelling(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  // The id of a token by its bytes (an added token by its content).
  std::optional<std::int32_t> find(std::string_view bytes) const;
  // The special token that ends documents: <|endoftext|>, <|end_of_text|>, </s> or <eos>, else the only
  // special token.
  std::optional<std::int32_t> end_of_document() const;

  // tokenizer.json text that Hugging Face tokenizers reads and encodes identically with.
  std::string to_json() const;
  void save(const std::filesystem::path& path) const;

 private:
  friend class Encoder;
  struct State;
  std::unique_ptr<const State> state_;
};

// Encodes many texts with one tokenizer, which must live longer. One per thread. The result of a text does
// not depend on what was encoded before.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  ~Encoder();
  Encoder(Encoder&&) noexcept;

  // Appends the ids of a text to `out` (no template).
  void encode(std::string_view text, std::vector<std::int32_t>& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft
