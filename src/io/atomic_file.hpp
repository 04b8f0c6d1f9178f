// Files that are whole or absent: written beside their name, flushed to disk, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace weft {

// An output file that appears under `path` at commit(). Errors (no space, no permission, short write) are an Error that
// holds the path, the operation, errno's text and the byte counts; the unfinished file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  std::size_t written_ = 0;
};

void write_file(const std::filesystem::path& path, std::string_view text);
// A whole file; a ConfigError naming it when it cannot be read.
std::string read_file(const std::filesystem::path& path);
// XXH3 64-bit hash of bytes: the checksum in checkpoints and caches.
std::uint64_t checksum(const void* data, std::size_t bytes);

}  // namespace weft
