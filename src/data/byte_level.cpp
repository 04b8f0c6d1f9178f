#include "data/byte_level.hpp"

#include <array>
#include <cstdint>
#include <cstring>

namespace weft {
namespace {

void append_utf8(std::string& to, char32_t c) {
  if (c < 0x80) {
    to += static_cast<char>(c);
  } else {  // the alphabet ends at U+0143
    to += static_cast<char>(0xC0 | (c >> 6));
    to += static_cast<char>(0x80 | (c & 0x3F));
  }
}

constexpr bool keeps_its_code(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::size_t kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, kAlphabetEnd> byte{};  // -1: not in the alphabet
};

// Printable Latin-1 stands for itself; the others follow from U+0100 in byte order.
constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& b : alphabet.byte) b = -1;
  char32_t next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const char32_t c = keeps_its_code(b) ? static_cast<char32_t>(b) : next++;
    alphabet.character[b] = c;
    alphabet.byte[c] = static_cast<std::int16_t>(b);
  }
  return alphabet;
}
constexpr Alphabet kAlphabet = make_alphabet();

struct Lead {
  std::size_t length;                // 0: no lead byte
  unsigned second_low, second_high;  // bounds of the second byte: no overlong forms, surrogates or > U+10FFFF
};

Lead lead_of(unsigned char c) {
  if (c < 0x80) return {1, 0, 0};
  if (c < 0xC2) return {0, 0, 0};
  if (c < 0xE0) return {2, 0x80, 0xBF};
  if (c == 0xE0) return {3, 0xA0, 0xBF};
  if (c == 0xED) return {3, 0x80, 0x9F};
  if (c < 0xF0) return {3, 0x80, 0xBF};
  if (c == 0xF0) return {4, 0x90, 0xBF};
  if (c < 0xF4) return {4, 0x80, 0xBF};
  if (c == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes at the front that are valid so far: `whole` says whether they are a whole character.
std::size_t scan_character(std::string_view text, bool& whole) {
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  whole = false;
  if (lead.length == 0) return 0;
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i >= text.size()) return i;
    const auto c = static_cast<unsigned char>(text[i]);
    const unsigned low = i == 1 ? lead.second_low : 0x80, high = i == 1 ? lead.second_high : 0xBF;
    if (c < low || c > high) return i;
  }
  whole = true;
  return lead.length;
}

}  // namespace

std::size_t utf8_character(std::string_view text) {
  if (text.empty()) return 0;
  bool whole = false;
  const std::size_t length = scan_character(text, whole);
  return whole ? length : 0;
}

std::size_t utf8_valid_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t block = 0;
    while (i + sizeof(block) <= text.size()) {
      std::memcpy(&block, text.data() + i, sizeof(block));
      if ((block & 0x8080808080808080u) != 0) break;
      i += sizeof(block);
    }
    if (i == text.size()) break;
    const std::size_t length = utf8_character(text.substr(i));
    if (length == 0) break;
    i += length;
  }
  return i;
}

std::string utf8_lossy(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t valid = utf8_valid_prefix(bytes);
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    bool whole = false;
    const std::size_t bad = scan_character(bytes, whole);
    text += "\xEF\xBF\xBD";
    bytes.remove_prefix(bad == 0 ? 1 : bad);
  }
  return text;
}

std::string byte_level_spelling(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) append_utf8(spelling, kAlphabet.character[static_cast<unsigned char>(c)]);
  return spelling;
}

std::optional<std::string> byte_level_bytes(std::string_view spelling) {
  std::string bytes;
  for (std::size_t i = 0; i < spelling.size(); ++i) {
    unsigned c = static_cast<unsigned char>(spelling[i]);
    if (c >= 0x80) {
      if (c < 0xC2 || c > 0xC5 || i + 1 >= spelling.size()) return std::nullopt;
      c = ((c & 0x1F) << 6) | (static_cast<unsigned char>(spelling[++i]) & 0x3F);
    }
    if (c >= kAlphabetEnd || kAlphabet.byte[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[c]);
  }
  return bytes;
}

char32_t byte_level_character(unsigned char byte) {
  return kAlphabet.character[byte];
}

}  // namespace weft
