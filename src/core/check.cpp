#include "core/check.hpp"

namespace weft {
namespace {

std::string join(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) text += (text.empty() ? "" : "\n") + problem;
  return text;
}

}  // namespace

ConfigError::ConfigError(std::vector<std::string> all) : Error(join(all)), problems(std::move(all)) {}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(fmt::format("{}:{}: {} (this is a fault in weft, not in its input; it must hold that {})", file,
                          line, message, condition));
}

}  // namespace weft
