#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.hpp"
#include "interop/huggingface.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kCompanions[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
};

struct Shard {
  std::string file;
  std::vector<SafetensorsWriter::Entry> entries;
};

std::int64_t bytes_of(const SafetensorsWriter::Entry& entry) {
  return entry.shape.elems() * static_cast<std::int64_t>(weft::bytes_of(entry.dtype));
}

std::vector<Shard> shards_of(const TensorMap& map, DType dtype, std::int64_t limit) {
  std::vector<Shard> shards(1);
  std::int64_t bytes = 0;
  for (const ForeignTensor& tensor : map.foreign()) {
    const SafetensorsWriter::Entry entry{tensor.name, dtype, tensor.shape};
    if (!shards.back().entries.empty() && bytes + bytes_of(entry) > limit) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().entries.push_back(entry);
    bytes += bytes_of(entry);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].file =
        shards.size() == 1 ? kSingle : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

// What is there would be mixed up with, or read in place of, the new model.
void check_folder(const fs::path& folder, const std::vector<Shard>& shards) {
  std::vector<std::string> problems;
  const auto refuse = [&](const fs::path& path) {
    problems.push_back(
        fmt::format("{} exists: export to a folder without a model, or remove it first", path.string()));
  };
  if (fs::exists(folder / "config.json")) refuse(folder / "config.json");
  // A finished or unfinished export of the same form is written over; a file that takes precedence is not.
  if (shards.size() > 1 && fs::exists(folder / kSingle)) refuse(folder / kSingle);
  if (!problems.empty()) throw ConfigError(problems);
}

}  // namespace

struct HuggingFaceWriter::State {
  fs::path folder;
  HuggingFaceExport options;
  std::string config_text;
  TensorMap map;
  std::vector<Shard> shards;
  std::size_t shard = 0, entry = 0;  // the next tensor
  std::unique_ptr<SafetensorsWriter> file;
  std::unique_ptr<Assembler> assembler;

  void emit(const Tensor& tensor) {
    if (entry == 0) {
      file = std::make_unique<SafetensorsWriter>(folder / shards[shard].file, shards[shard].entries,
                                                 std::map<std::string, std::string>{{"format", "pt"}});
    }
    file->write(tensor);
    if (++entry < shards[shard].entries.size()) return;
    file->commit();
    file.reset();
    entry = 0;
    ++shard;
  }

  void write_index() const {
    Json index = {{"weight_map", Json::object()}};
    std::int64_t total = 0;
    for (const Shard& s : shards) {
      for (const SafetensorsWriter::Entry& e : s.entries) {
        index["weight_map"][e.name] = s.file;
        total += bytes_of(e);
      }
    }
    index["metadata"]["total_size"] = total;
    write_file(folder / kIndex, index.dump(2) + "\n");
  }
};

HuggingFaceWriter::HuggingFaceWriter(fs::path folder, const ModelConfig& config, HuggingFaceExport options) {
  const fs::path original = options.source.empty() ? fs::path{} : options.source / "config.json";
  const std::string source = original.empty() || !fs::exists(original) ? std::string{} : read_file(original);
  std::string text = config_to_huggingface(config, options.dtype, source);
  TensorMap map = huggingface_map(config);
  std::vector<Shard> shards = shards_of(map, options.dtype, options.shard_bytes);
  check_folder(folder, shards);
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) config_fail("{}: cannot create the folder: {}", folder.string(), code.message());
  state_ = std::unique_ptr<State>(new State{std::move(folder),
                                            std::move(options),
                                            std::move(text),
                                            std::move(map),
                                            std::move(shards),
                                            0,
                                            0,
                                            {},
                                            {}});
  State* state = state_.get();
  state->assembler = std::make_unique<Assembler>(
      state->map, state->options.dtype,
      [state](const ForeignTensor&, const Tensor& tensor) { state->emit(tensor); });
}

HuggingFaceWriter::~HuggingFaceWriter() = default;

std::vector<std::string> HuggingFaceWriter::order() const {
  return state_->map.order();
}

void HuggingFaceWriter::write(const std::string& canonical, const Tensor& full) {
  state_->assembler->add(canonical, full);
}

void HuggingFaceWriter::commit() {
  State& s = *state_;
  WEFT_CHECK(s.assembler->complete(), "{}: commit before every tensor was written", s.folder.string());
  if (s.shards.size() > 1) s.write_index();
  if (!s.options.source.empty()) {
    for (const char* name : kCompanions) {
      const fs::path from = s.options.source / name;
      if (fs::exists(from)) write_file(s.folder / name, read_file(from));
    }
  }
  write_file(s.folder / "config.json", s.config_text);
}

}  // namespace weft
