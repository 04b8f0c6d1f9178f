#include "core/log.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace weft {
namespace {

LogLevel threshold() {
  const char* name = std::getenv("WEFT_LOG");
  const std::string_view level = name == nullptr ? "info" : name;
  if (level == "debug") return LogLevel::kDebug;
  if (level == "warn") return LogLevel::kWarn;
  return LogLevel::kInfo;
}

}  // namespace

void log_line(LogLevel level, std::string_view text) {
  if (level < threshold()) return;
  const std::string line = fmt::format("{}{}\n", level == LogLevel::kWarn ? "warning: " : "", text);
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of several ranks do not mix
}

}  // namespace weft
