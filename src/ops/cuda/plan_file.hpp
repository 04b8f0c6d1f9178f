// Tuned algorithms kept between runs: a text file of one line each, with what it was tuned for, the
// algorithm in hex, and a checksum.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace weft::ops::cuda {

class PlanFile {
 public:
  using Bits = std::array<std::uint64_t, 8>;  // a cublasLtMatmulAlgo_t

  PlanFile() = default;  // no file: remembers nothing
  // Reads the file where there is one. A file that is not whole is left unused, with a warning.
  explicit PlanFile(std::filesystem::path path);

  // Null when there is none. A key is one line of text: device, library version, problem.
  const Bits* find(const std::string& key) const;
  void put(const std::string& key, const Bits& bits);
  // When something was put since it was read: writes the file anew (beside its name, then renamed), together
  // with what other processes and ranks have put there meanwhile. What goes wrong is a warning.
  void save();

 private:
  std::filesystem::path path_;
  std::map<std::string, Bits> read_, put_;
};

}  // namespace weft::ops::cuda
