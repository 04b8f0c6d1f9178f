// Files that are whole or absent: written beside their name, flushed to disk, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// What a file holds, in short.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // as checksum() of all of it
};

// An output file that appears under `path` at commit(). Errors (no space, no permission, short write) are an
// Error that holds the path, the operation, errno's text and the byte counts; the unfinished file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Everything is on the disk; for several files that shall appear together, before the first is committed.
  void finish();
  void commit();
  // Of everything written so far.
  FileDigest digest() const;

 private:
  struct Hash;
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  std::size_t written_ = 0;
  bool committed_ = false;
  std::unique_ptr<Hash> hash_;
};

void write_file(const std::filesystem::path& path, std::string_view text);
// Before a long run: a ConfigError naming `option` when no file can be written at `path`, or when it is one
// of `inputs`, which the result would replace. Leaves nothing behind.
void check_output(std::string_view option, const std::filesystem::path& path,
                  const std::vector<std::filesystem::path>& inputs = {});
// A whole file; a ConfigError naming it when it cannot be read.
std::string read_file(const std::filesystem::path& path);
// Size and checksum of a file, read piece by piece; errors as read_file.
FileDigest file_digest(const std::filesystem::path& path);
// XXH3 64-bit hash of bytes: the checksum in checkpoints and caches.
std::uint64_t checksum(const void* data, std::size_t bytes);

}  // namespace weft
