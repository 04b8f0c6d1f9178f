// Files of this folder: read-only maps, line-wise reading in bounded memory, and outputs that appear whole or
// not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "io/atomic_file.hpp"

namespace weft {

// A file mapped for reading. A ConfigError names it when it is missing, no plain file or unreadable.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A file read front to back in blocks.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Appends up to `bytes` bytes; returns how many, 0 at the end of the file.
  std::size_t read(std::string& to, std::size_t bytes);
  // The next line with its '\n' (the last may lack it); false at the end of the file.
  bool line(std::string& to);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string buffer_;
  std::size_t position_ = 0;
};

// An AtomicFile that is written in small pieces: finish() flushes it to disk, publish() then gives it its
// name.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path) : file_(std::move(path)) { buffer_.reserve(kBlock); }

  void write(const void* data, std::size_t bytes);
  template <class T>
  void write_values(std::span<const T> values) {
    write(values.data(), values.size_bytes());
  }
  void finish();
  void publish();

 private:
  static constexpr std::size_t kBlock = std::size_t{1} << 20;

  AtomicFile file_;
  std::string buffer_;
};

}  // namespace weft
