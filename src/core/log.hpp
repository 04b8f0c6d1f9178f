// Progress and warnings, to stderr, one whole line at a time. The level comes from WEFT_LOG
// (debug|info|warn).
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace weft {

enum class LogLevel { kDebug, kInfo, kWarn };

void log_line(LogLevel level, std::string_view text);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace weft
