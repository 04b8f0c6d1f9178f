// The safetensors container: u64 header length, JSON header, raw little-endian tensors. Reading maps the
// file; nothing is copied until a tensor is used.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "io/atomic_file.hpp"

namespace weft {

// One file. Every fault of the file (truncated, header not JSON, offsets that overlap or pass the end,
// unknown dtype, size that does not match shape) is a ConfigError naming the file, the tensor and the
// numbers.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;

  const std::filesystem::path& path() const;
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  // A read-only view of the mapped bytes; valid while this object lives. Shapes of more than four dimensions
  // and missing names are a ConfigError that names file and tensor.
  Tensor get(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Writes one file tensor by tensor, without holding them all: declare every tensor, then write each one once,
// in the declared order, then commit(). The file appears under its name only at commit (written beside,
// flushed, renamed).
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
  };
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<Entry>& entries,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();  // removes the unfinished file if commit() was not reached
  // The next tensor in declared order (contiguous, host memory); checked against its declaration.
  void write(const Tensor& tensor);
  void commit();
  // Of the file, when the last tensor has been written.
  FileDigest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Small files in one call.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace weft
