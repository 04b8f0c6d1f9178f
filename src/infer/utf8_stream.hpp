// Text that arrives in pieces of bytes, handed on as whole characters: a token may end in the middle of one.
#pragma once

#include <string>
#include <string_view>

namespace weft {

class Utf8Stream {
 public:
  // The characters that are complete now. Bytes that belong to no character become U+FFFD, as Hugging Face
  // decodes.
  std::string push(std::string_view bytes);
  // What is left: U+FFFD if a character was begun and not ended.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace weft
