#include "checkpoint/info.hpp"

#include <fmt/format.h>

#include <charconv>

#include "checkpoint/index.hpp"
#include "core/check.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

// "there are iter_0000004, iter_0000008; name one of them"
std::string choices(const fs::path& save) {
  std::vector<std::string> names;
  for (const std::int64_t iteration : iterations_in(save)) names.push_back(iteration_folder(iteration));
  if (names.empty()) return "there is no other iteration in that folder";
  return fmt::format("name a folder that is there: {}/{{{}}}", save.string(), fmt::join(names, ", "));
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

bool has_checkpoint(const fs::path& folder) {
  return is_there(folder / kIndexFile) || is_there(folder / kLatestFile) || !iterations_in(folder).empty();
}

fs::path find_checkpoint(const fs::path& folder) {
  if (is_there(folder / kIndexFile)) return folder;
  if (!is_there(folder)) config_fail("{}: no such folder", folder.string());
  const fs::path latest = folder / kLatestFile;
  if (!is_there(latest)) {
    config_fail("{}: no checkpoint: neither {} nor {} is in it; {}", folder.string(), kIndexFile, kLatestFile,
                choices(folder));
  }
  std::string text = read_file(latest);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  std::int64_t iteration = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), iteration);
  if (code != std::errc() || end != text.data() + text.size() || iteration < 0) {
    config_fail("{}: '{}' is no iteration number; {}", latest.string(), text.substr(0, 40), choices(folder));
  }
  fs::path found = folder / iteration_folder(iteration);
  if (!is_there(found)) {
    config_fail("{}: names iteration {}, but there is no {}; {}", latest.string(), iteration, found.string(),
                choices(folder));
  }
  if (!is_there(found / kIndexFile)) {
    config_fail("{}: names {}, which has no {}; {}", latest.string(), found.string(), kIndexFile,
                choices(folder));
  }
  return found;
}

CheckpointInfo read_checkpoint_info(const fs::path& folder) {
  fs::path found = find_checkpoint(folder);
  CheckpointInfo info = parse_index(found / kIndexFile, read_file(found / kIndexFile));
  info.folder = found;
  return info;
}

}  // namespace weft
