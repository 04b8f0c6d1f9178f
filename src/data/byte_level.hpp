// Bytes as text: UTF-8 scanning, and the byte-level alphabet of GPT-2's tokenizer files, which writes each of
// the 256 bytes as one printable character ("Ġ" is the space).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

// Length in bytes (1 to 4) of the UTF-8 character at the front of `text`; 0 when there is no valid one.
std::size_t utf8_character(std::string_view text);
// Length of the longest front part of `text` that is valid UTF-8.
std::size_t utf8_valid_prefix(std::string_view text);
// The text with each maximal invalid part replaced by U+FFFD, as most programs show it.
std::string utf8_lossy(std::string_view bytes);

// The byte-level spelling of bytes ("Ġthe" for " the").
std::string byte_level_spelling(std::string_view bytes);
// The bytes of a spelling; none when a character is outside the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view spelling);
// The byte-level character of a byte.
char32_t byte_level_character(unsigned char byte);

}  // namespace weft
