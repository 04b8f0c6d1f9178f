#include "data/splitter.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "core/check.hpp"
#include "data/byte_level.hpp"

namespace weft {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// Unicode's White_Space, which \s means in tokenizer files. PCRE2's own \s also has U+180E.
constexpr std::string_view kSpaces =
    R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// The pattern in PCRE2's dialect. Forms that mean something else there are refused.
std::string translate(const std::string& pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 'h' || next == 'H' || (next == 'S' && in_class))
        config_fail("pattern {}: \\{} {}is not supported", pattern, next, in_class ? "inside [] " : "");
      if (next == 's') {
        out += in_class ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
      } else if (next == 'S') {
        out += fmt::format("[^{}]", kSpaces);
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (in_class && (c == '[' || (c == '&' && pattern.substr(i, 2) == "&&")))
      config_fail("pattern {}: '{}' inside [] (at {}) is not supported", pattern, c, i);
    out += c;
    if (!in_class && c == '[') {
      in_class = true;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
    } else if (in_class && c == ']') {
      in_class = false;
    }
  }
  return out;
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

constexpr std::size_t kJitStackStart = std::size_t{32} << 10, kJitStackMost = std::size_t{64} << 20;

}  // namespace

struct Splitter::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

struct Splitter::Scratch::State {
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Splitter::Scratch::Scratch(const Splitter& splitter) : state_(std::make_unique<State>()) {
  state_->match = pcre2_match_data_create_from_pattern(splitter.code_->code, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  state_->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);
  WEFT_CHECK(state_->match != nullptr && state_->context != nullptr, "no memory for pattern matching");
  if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}
Splitter::Scratch::~Scratch() = default;
Splitter::Scratch::Scratch(Scratch&&) noexcept = default;

Splitter::Splitter(const std::string& pattern) : pattern_(pattern), code_(std::make_unique<Code>()) {
  const std::string translated = translate(pattern);
  int error = 0;
  PCRE2_SIZE at = 0;
  code_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code_->code == nullptr)
    config_fail("pattern {}: {} (at {} of {})", pattern, message_of(error), at, translated);
  // Without a JIT compiler in the library the interpreter runs the pattern.
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);
}
Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;

void Splitter::split(std::string_view text, std::vector<std::string_view>& pieces, Scratch& scratch) const {
  while (!text.empty()) {
    const std::size_t valid = utf8_valid_prefix(text);
    if (valid > 0) split_valid(text.substr(0, valid), pieces, scratch);
    text.remove_prefix(valid);
    std::size_t bad = 0;
    while (bad < text.size() && utf8_character(text.substr(bad)) == 0) ++bad;
    if (bad > 0) pieces.push_back(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

void Splitter::split_valid(std::string_view text, std::vector<std::string_view>& pieces,
                           Scratch& scratch) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(scratch.state_->match);
  std::size_t done = 0, from = 0;
  while (from < text.size()) {
    const int result = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                   scratch.state_->match, scratch.state_->context);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      fail("pattern {}: {} (text of {} bytes, at {})", pattern_, message_of(result), text.size(), from);
    const std::size_t begin = bounds[0], end = bounds[1];
    if (end <= begin) {  // an empty match cuts nothing
      from = std::max(from, begin);
      if (from < text.size()) from += utf8_character(text.substr(from));
      continue;
    }
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    pieces.push_back(text.substr(begin, end - begin));
    done = from = end;
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
}

}  // namespace weft
