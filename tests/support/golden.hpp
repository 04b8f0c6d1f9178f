// Reference results of other programs, under tests/golden.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.hpp"

namespace weft::testing {

inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(WEFT_SOURCE_DIR) / "tests/golden" / name;
}

// A fresh, empty folder of this test, removed with everything in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Difference {
  double max = 0, rms = 0, absmax = 0;  // of a − b; of b
};
// Same shapes, any floating dtypes.
Difference difference(const Tensor& a, const Tensor& b);

}  // namespace weft::testing
