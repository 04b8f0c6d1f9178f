// Model folders for tests: copies of golden ones, with faults put in.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/tensor.hpp"

namespace weft::test {

using Json = nlohmann::json;

std::filesystem::path golden_model(const std::string& name);
std::filesystem::path golden_megatron(const std::string& name);

// A folder that goes with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  operator const std::filesystem::path&() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Stored {
  DType dtype;
  Shape shape;
  std::vector<std::uint64_t> storage;  // aligned for every type

  Stored() = default;
  explicit Stored(const Tensor& tensor);
  Stored(DType type, const Shape& size);
  Tensor tensor() const;
  bool operator==(const Stored& other) const;
};
using Tensors = std::map<std::string, Stored>;

Tensors load_tensors(const std::filesystem::path& file);
void save_tensors(const std::filesystem::path& file, const Tensors& tensors);
Json load_json(const std::filesystem::path& file);
void save_json(const std::filesystem::path& file, const Json& object);

// Copies a golden model into `to`, changed by the two functions (either may be null).
void make_model(const std::filesystem::path& to, const std::string& golden,
                const std::function<void(Json&)>& config,
                const std::function<void(Tensors&)>& tensors = nullptr);

// The problems of the ConfigError that `action` throws, one a line; "" and a test failure when it throws
// none.
std::string problems_from(const std::function<void()>& action);
// The lines that `action` prints to stderr.
std::vector<std::string> warnings_from(const std::function<void()>& action);

}  // namespace weft::test
