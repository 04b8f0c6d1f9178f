#include "core/memory.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace weft {
namespace {

constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

// The number after `key` in a file of "key number" lines.
std::size_t number_in(const char* file, const std::string& key, std::size_t otherwise) {
  std::ifstream in(file);
  std::string word;
  while (in >> word) {
    std::size_t value = 0;
    if (word == key) return in >> value ? value : otherwise;
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return otherwise;
}

std::size_t first_number(const char* file) {
  std::size_t value = 0;
  return std::ifstream(file) >> value ? value : kUnknown;  // "max" is no number
}

std::size_t left(std::size_t limit, std::size_t used) {
  return limit == kUnknown ? kUnknown : limit - std::min(limit, used);
}

std::size_t machine() {
  const std::size_t kib = number_in("/proc/meminfo", "MemAvailable:", kUnknown);
  return kib == kUnknown ? kUnknown : (kib + number_in("/proc/meminfo", "SwapFree:", 0)) * 1024;
}

// Version 2 of control groups, then version 1. Their caches can be freed, so only what is anonymous counts.
std::size_t control_group() {
  return std::min(
      left(first_number("/sys/fs/cgroup/memory.max"), number_in("/sys/fs/cgroup/memory.stat", "anon", 0)),
      left(first_number("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
           number_in("/sys/fs/cgroup/memory/memory.stat", "total_rss", 0)));
}

std::size_t address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknown;
  return left(static_cast<std::size_t>(limit.rlim_cur), number_in("/proc/self/status", "VmSize:", 0) * 1024);
}

}  // namespace

std::size_t available_memory() {
  return std::min({machine(), control_group(), address_space()});
}

}  // namespace weft
