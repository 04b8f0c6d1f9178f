#include "core/log.hpp"

#include <unistd.h>

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
  // A terminal may show a progress bar on its last line: the text takes its place.
  const char* clear = ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "";
  const std::string line = fmt::format("{}{}{}\n", clear, level == LogLevel::kWarn ? "warning: " : "", text);
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of several ranks do not mix
}

}  // namespace weft
