// Errors. Three kinds leave a function: ConfigError (usage, configuration, unreadable input: exit status 2,
// nothing touched), Error (failed while running: exit status 1), Aborted (another rank failed first; only
// that one reports). Programmer errors are WEFT_CHECK: they say which condition and where.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace weft {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the user can put right. Holds every problem found, so that all are reported at once.
struct ConfigError : Error {
  explicit ConfigError(std::vector<std::string> problems);
  explicit ConfigError(std::string problem) : ConfigError(std::vector<std::string>{std::move(problem)}) {}
  std::vector<std::string> problems;
};

// Another rank of this run failed first: leave quietly.
struct Aborted : Error {
  using Error::Error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

// fail("cannot do {}", x): an Error with a formatted text.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// config_fail("--option {} ...", x): a ConfigError with one problem.
template <class... Args>
[[noreturn]] void config_fail(fmt::format_string<Args...> format, Args&&... args) {
  throw ConfigError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace weft

#define WEFT_CHECK(condition, ...)                                                    \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::weft::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (false)
