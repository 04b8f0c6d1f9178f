#include "ops/cuda/plan_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>

#include "core/log.hpp"

namespace weft::ops::cuda {
namespace {

using Plans = std::map<std::string, PlanFile::Bits>;

constexpr std::string_view kFirstLine = "weft matrix product plans, format 1";
constexpr std::size_t kWord = 16;                           // hex digits of 64 bits
constexpr std::size_t kPrefix = 8 * kWord + 1 + kWord + 1;  // of a line, before its key

// FNV-1a (Fowler, Noll, Vo), 64 bits.
std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string line_of(const std::string& key, const PlanFile::Bits& bits) {
  std::string line;
  for (const std::uint64_t word : bits) line += fmt::format("{:016x}", word);
  return fmt::format("{} {:016x} {}", line, fnv1a(line + key), key);
}

bool parse_word(std::string_view text, std::uint64_t& word) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), word, 16);
  return error == std::errc() && end == text.data() + text.size();
}

// "" or what is wrong with the file.
std::string parse(std::istream& in, Plans& plans) {
  std::string line;
  if (!std::getline(in, line) || line != kFirstLine) return "its first line is of another kind of file";
  for (int number = 2; std::getline(in, line); ++number) {
    const std::string_view text = line;
    PlanFile::Bits bits{};
    std::uint64_t sum = 0;
    bool whole = text.size() > kPrefix && parse_word(text.substr(8 * kWord + 1, kWord), sum);
    for (std::size_t i = 0; whole && i < bits.size(); ++i) {
      whole = parse_word(text.substr(i * kWord, kWord), bits[i]);
    }
    if (!whole || line != line_of(line.substr(kPrefix), bits)) {
      return fmt::format("line {} is damaged", number);
    }
    plans[line.substr(kPrefix)] = bits;
  }
  return "";
}

Plans read(const std::filesystem::path& path, bool warn) {
  std::ifstream in(path);
  if (!in) return {};
  Plans plans;
  const std::string wrong = parse(in, plans);
  if (wrong.empty()) return plans;
  if (warn) log_warn("{}: not used: {}; it will be written anew", path.string(), wrong);
  return {};
}

}  // namespace

PlanFile::PlanFile(std::filesystem::path path) : path_(std::move(path)), read_(read(path_, true)) {}

const PlanFile::Bits* PlanFile::find(const std::string& key) const {
  for (const Plans* plans : {&put_, &read_}) {
    if (const auto it = plans->find(key); it != plans->end()) return &it->second;
  }
  return nullptr;
}

void PlanFile::put(const std::string& key, const Bits& bits) {
  if (!path_.empty()) put_[key] = bits;
}

void PlanFile::save() {
  if (put_.empty()) return;
  Plans all = read(path_, false);
  for (const auto& [key, bits] : put_) all[key] = bits;
  // Ranks may be threads: the process alone does not make a name unique.
  const std::filesystem::path temporary =
      fmt::format("{}.{}.{:x}.tmp", path_.string(), getpid(), reinterpret_cast<std::uintptr_t>(this));
  std::error_code error;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), error);
  error.clear();  // opening the file says more
  errno = 0;
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << kFirstLine << '\n';
    for (const auto& [key, bits] : all) out << line_of(key, bits) << '\n';
    out.close();
    if (!out) error = std::error_code(errno != 0 ? errno : EIO, std::generic_category());
  }
  if (!error) std::filesystem::rename(temporary, path_, error);
  if (error) {
    log_warn("{}: tuned plans were not kept: {}", path_.string(), error.message());
    std::filesystem::remove(temporary, error);
    return;
  }
  read_ = std::move(all);
  put_.clear();
}

}  // namespace weft::ops::cuda
