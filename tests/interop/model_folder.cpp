#include "model_folder.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <sstream>

#include "core/check.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"

namespace weft::test {

namespace fs = std::filesystem;

fs::path golden_model(const std::string& name) {
  return fs::path(WEFT_SOURCE_DIR) / "tests/golden/models" / name;
}
fs::path golden_megatron(const std::string& name) {
  return fs::path(WEFT_SOURCE_DIR) / "tests/golden/megatron" / name;
}

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "weft-interop-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw Error("mkdtemp " + pattern);
  path_ = pattern;
}
TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Stored::Stored(DType type, const Shape& size)
    : dtype(type), shape(size), storage((static_cast<std::size_t>(size.elems()) * bytes_of(type) + 7) / 8) {}
Stored::Stored(const Tensor& tensor) : Stored(tensor.dtype(), tensor.shape()) {
  std::memcpy(storage.data(), tensor.raw(), tensor.bytes());
}
Tensor Stored::tensor() const {
  return Tensor::borrow(const_cast<std::uint64_t*>(storage.data()), dtype, shape);
}
bool Stored::operator==(const Stored& other) const {
  return dtype == other.dtype && shape == other.shape && storage == other.storage;
}

Tensors load_tensors(const fs::path& file) {
  const SafetensorsFile source(file);
  Tensors tensors;
  for (const std::string& name : source.names()) tensors.emplace(name, Stored(source.get(name)));
  return tensors;
}

void save_tensors(const fs::path& file, const Tensors& tensors) {
  std::vector<std::pair<std::string, Tensor>> list;
  for (const auto& [name, stored] : tensors) list.emplace_back(name, stored.tensor());
  write_safetensors(file, list, {{"format", "pt"}});
}

Json load_json(const fs::path& file) {
  return Json::parse(read_file(file));
}
void save_json(const fs::path& file, const Json& object) {
  write_file(file, object.dump(2));
}

void make_model(const fs::path& to, const std::string& golden, const std::function<void(Json&)>& config,
                const std::function<void(Tensors&)>& tensors) {
  fs::create_directories(to);
  Json object = load_json(golden_model(golden) / "config.json");
  if (config) config(object);
  save_json(to / "config.json", object);
  Tensors list = load_tensors(golden_model(golden) / "model.safetensors");
  if (tensors) tensors(list);
  save_tensors(to / "model.safetensors", list);
}

std::string problems_from(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& e) {
    std::string text;
    for (const std::string& problem : e.problems) text += problem + "\n";
    return text;
  }
  ADD_FAILURE() << "no ConfigError";
  return {};
}

std::vector<std::string> warnings_from(const std::function<void()>& action) {
  testing::internal::CaptureStderr();
  action();
  std::istringstream text(testing::internal::GetCapturedStderr());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

}  // namespace weft::test
