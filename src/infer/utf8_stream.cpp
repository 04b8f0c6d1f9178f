#include "infer/utf8_stream.hpp"

namespace weft {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Scan {
  std::size_t length;  // of the character, or of the longest beginning of one
  enum { kCharacter, kBegun, kBad } kind;
};

// Unicode 15, table 3-7: well-formed UTF-8 byte sequences.
Scan scan(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return {1, Scan::kCharacter};
  if (first < 0xC2 || first > 0xF4) return {1, Scan::kBad};
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  unsigned char low = 0x80,
                high = 0xBF;  // of the second byte: no overlong forms, surrogates or numbers past the end
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, Scan::kBegun};
    if (at(i) < low || at(i) > high) return {i, Scan::kBad};
    low = 0x80;
    high = 0xBF;
  }
  return {length, Scan::kCharacter};
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  std::string_view left = held_;
  while (!left.empty()) {
    const Scan s = scan(left);
    if (s.kind == Scan::kBegun) break;
    out += s.kind == Scan::kCharacter ? left.substr(0, s.length) : kReplacement;
    left.remove_prefix(s.length);
  }
  held_ = std::string(left);
  return out;
}

std::string Utf8Stream::finish() {
  const bool begun = !held_.empty();
  held_.clear();
  return begun ? std::string(kReplacement) : std::string();
}

}  // namespace weft
