#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/check.hpp"
#include "core/log.hpp"
#include "interop/copy.hpp"
#include "interop/huggingface.hpp"
#include "interop/huggingface_family.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// "a, b, c and 12 more"
std::string list_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 10;
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMost));
  const std::string text = fmt::format("{}", fmt::join(names.begin(), end, ", "));
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
}

// The model's files, and which tensor is in which of them.
class Files {
 public:
  explicit Files(const fs::path& folder) : folder_(folder) {
    if (fs::exists(folder / kSingle)) {
      open_single();
    } else if (fs::exists(folder / kIndex)) {
      open_index();
    } else {
      const bool pickled =
          fs::exists(folder / "pytorch_model.bin") || fs::exists(folder / "pytorch_model.bin.index.json");
      config_fail("{}: no {} and no {}{}", folder.string(), kSingle, kIndex,
                  pickled ? "; pytorch_model.bin is not read: save the model as safetensors" : "");
    }
  }

  bool contains(const std::string& name) const { return home_.contains(name); }
  const SafetensorsFile& file_of(const std::string& name) const { return files_[home_.at(name)]; }
  Tensor get(const std::string& name) const { return file_of(name).get(name); }
  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const auto& [name, file] : home_) list.push_back(name);
    return list;
  }
  std::size_t size() const { return home_.size(); }

 private:
  void open_single() {
    files_.emplace_back(folder_ / kSingle);
    for (const std::string& name : files_[0].names()) home_.emplace(name, 0);
  }

  void open_index() {
    const std::string where = (folder_ / kIndex).string();
    Json index;
    try {
      index = Json::parse(read_file(folder_ / kIndex));
    } catch (const Json::exception& e) {
      config_fail("{}: not valid JSON: {}", where, e.what());
    }
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
      config_fail("{}: no weight_map object", where);
    }
    std::map<std::string, std::vector<std::string>> tensors_of;  // shard file -> tensors
    for (const auto& [name, file] : index["weight_map"].items()) {
      // Only files of this folder: a path could lead anywhere.
      if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>()) {
        config_fail("{}: tensor {}: {} is no file name", where, name, file.dump());
      }
      tensors_of[file.get<std::string>()].push_back(name);
    }
    std::vector<std::string> problems;
    for (const auto& [file, names] : tensors_of) open_shard(file, names, where, problems);
    if (!problems.empty()) throw ConfigError(problems);
  }

  void open_shard(const std::string& file, const std::vector<std::string>& names, const std::string& where,
                  std::vector<std::string>& problems) {
    if (!fs::exists(folder_ / file)) {
      problems.push_back(
          fmt::format("{}: the file {} does not exist; it should hold {}", where, file, list_text(names)));
      return;
    }
    files_.emplace_back(folder_ / file);
    std::vector<std::string> absent;
    for (const std::string& name : names) {
      if (files_.back().contains(name)) {
        home_.emplace(name, files_.size() - 1);
      } else {
        absent.push_back(name);
      }
    }
    if (!absent.empty()) {
      problems.push_back(fmt::format("{}: {} does not hold {}", where, file, list_text(absent)));
    }
  }

  fs::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t> home_;
};

bool equal_elements(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

}  // namespace

struct HuggingFaceReader::State {
  fs::path folder;
  ModelConfig config;
  HuggingFaceFamily family;
  Files files;
  TensorMap map;
  std::map<std::string, std::string> stored;  // the family's name -> name in the files

  // The name under which the files hold a tensor; empty: they do not.
  std::string find(const std::string& name) const {
    if (files.contains(name)) return name;
    const std::string prefix = name_prefix(family);
    const std::string bare = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    return files.contains(bare) ? bare : std::string{};
  }
  void check_tensors(std::vector<std::string>& problems);
  void check_output(std::vector<std::string>& problems);
  void report_extra() const;
};

void HuggingFaceReader::State::check_tensors(std::vector<std::string>& problems) {
  std::vector<std::string> missing;
  for (const ForeignTensor& tensor : map.foreign()) {
    const std::string name = find(tensor.name);
    if (name.empty()) {
      missing.push_back(tensor.name);
      continue;
    }
    stored.emplace(tensor.name, name);
    const Tensor view = files.get(name);
    const std::string where = files.file_of(name).path().string();
    if (!(view.shape() == tensor.shape)) {
      problems.push_back(fmt::format("{}: tensor {} has shape {}, but config.json asks for {}", where, name,
                                     to_string(view.shape()), to_string(tensor.shape)));
    } else if (!is_floating(view.dtype())) {
      problems.push_back(fmt::format("{}: tensor {} has type {}; weights must be F64, F32, BF16 or F16",
                                     where, name, name_of(view.dtype())));
    }
  }
  if (missing.empty()) return;
  const bool head = std::find(missing.begin(), missing.end(), "lm_head.weight") != missing.end();
  problems.push_back(fmt::format("{}: missing tensors: {}{}", folder.string(), list_text(missing),
                                 head ? " (config.json: tie_word_embeddings false)" : ""));
}

// A tied model has no output layer of its own; files may repeat the embeddings as one.
void HuggingFaceReader::State::check_output(std::vector<std::string>& problems) {
  const std::string head = "lm_head.weight", embedding = stored.at(map.foreign()[0].name);
  if (!config.tied || !files.contains(head)) return;
  if (!equal_elements(files.get(head), files.get(embedding))) {
    problems.push_back(fmt::format(
        "{}: config.json says tie_word_embeddings true, but {} differs from {}: set it to false, or remove "
        "{} from the file",
        files.file_of(head).path().string(), head, embedding, head));
  }
}

void HuggingFaceReader::State::report_extra() const {
  std::set<std::string> used;
  for (const auto& [name, in_file] : stored) used.insert(in_file);
  if (config.tied) used.insert("lm_head.weight");
  std::vector<std::string> extra;
  for (const std::string& name : files.names()) {
    if (!used.contains(name) && !is_derived(name)) extra.push_back(name);
  }
  if (!extra.empty())
    log_warn("{}: tensors that the model does not have: {}", folder.string(), list_text(extra));
}

HuggingFaceReader::HuggingFaceReader(const fs::path& folder) {
  const ModelConfig config = config_from_huggingface(folder);
  const HuggingFaceFamily family = huggingface_family(config);
  Files files(folder);
  // Before a list of that many layers is made.
  if (static_cast<std::uint64_t>(config.num_layers) > files.size()) {
    config_fail("{}: config.json asks for {} layers, but the files hold only {} tensors", folder.string(),
                config.num_layers, files.size());
  }
  state_ = std::unique_ptr<State>(
      new State{folder, config, family, std::move(files), huggingface_map(config), {}});
  std::vector<std::string> problems;
  state_->check_tensors(problems);
  if (problems.empty()) state_->check_output(problems);
  if (!problems.empty()) throw ConfigError(problems);
  state_->report_extra();
}

HuggingFaceReader::~HuggingFaceReader() = default;
HuggingFaceReader::HuggingFaceReader(HuggingFaceReader&&) noexcept = default;

const ModelConfig& HuggingFaceReader::config() const {
  return state_->config;
}
const TensorMap& HuggingFaceReader::map() const {
  return state_->map;
}
DType HuggingFaceReader::dtype() const {
  return state_->files.get(state_->stored.at(state_->map.foreign()[0].name)).dtype();
}

void HuggingFaceReader::read(const std::string& canonical, const Shape& global, const TensorRange& range,
                             const Tensor& destination) const {
  const State& s = *state_;
  if (!s.map.contains(canonical)) {
    config_fail("{}: the model has no tensor {}", s.folder.string(), canonical);
  }
  if (const Shape& shape = s.map.shape_of(canonical); !(shape == global)) {
    config_fail("{}: {} has shape {}, but {} is wanted", s.folder.string(), canonical, to_string(shape),
                to_string(global));
  }
  const Tensor foreign = s.files.get(s.stored.at(s.map.holder_of(canonical).name));
  s.map.read(foreign, canonical, range, destination);
}

void HuggingFaceReader::read(const LogicalTensor& part, const Tensor& destination) const {
  expect_shape(destination, part.local_shape(), part.name.c_str());
  if (part.cut < 0) return read(part.name, part.global, {}, destination);
  const std::int64_t real = part.real_count(), padding = part.count - real;
  const auto range_of = [&](std::int64_t begin, std::int64_t count) {
    const bool by_columns = part.cut > 0 && part.cut == destination.rank() - 1;
    return by_columns ? destination.slice_columns(begin, count) : destination.slice(begin, count);
  };
  if (real > 0) read(part.name, part.global, {part.cut, part.begin, real}, range_of(0, real));
  if (padding > 0) clear_matrix(matrix_view(range_of(real, padding)));
}

}  // namespace weft
