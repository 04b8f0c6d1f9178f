#include "checkpoint/index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr char kFormat[] = "weft checkpoint";
constexpr int kVersion = 1;

std::string hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::uint64_t from_hex(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (code != std::errc() || end != text.data() + text.size()) fail("'{}' is no checksum", text);
  return value;
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    if (name_of(dtype) == name) return dtype;
  }
  fail("'{}' is no dtype of a checkpoint (F64 F32 BF16 F16)", name);
}

Json to_json(const CheckpointFile& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", hex(file.checksum)}};
}

CheckpointFile file_from(const Json& json) {
  return {json.at("name"), json.at("bytes"), from_hex(json.at("xxh3"))};
}

Json to_json(const CheckpointTensor& tensor) {
  Json shape = Json::array(), pieces = Json::array();
  for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
  for (const CheckpointPiece& piece : tensor.pieces) {
    pieces.push_back(
        {{"file", piece.file}, {"key", piece.key}, {"begin", piece.begin}, {"count", piece.count}});
  }
  return {{"kind", tensor.kind}, {"name", tensor.name}, {"dtype", name_of(tensor.dtype)},
          {"shape", shape},      {"cut", tensor.cut},   {"pieces", pieces}};
}

CheckpointTensor tensor_from(const Json& json) {
  CheckpointTensor tensor = {.kind = json.at("kind"),
                             .name = json.at("name"),
                             .dtype = dtype_named(json.at("dtype")),
                             .shape = {},
                             .cut = json.at("cut"),
                             .pieces = {}};
  for (const Json& size : json.at("shape")) tensor.shape.push_back(size.get<std::int64_t>());
  for (const Json& piece : json.at("pieces")) {
    tensor.pieces.push_back({piece.at("file"), piece.at("key"), piece.at("begin"), piece.at("count")});
  }
  return tensor;
}

template <class T>
Json array_of(const std::vector<T>& values) {
  Json array = Json::array();
  for (const T& value : values) array.push_back(to_json(value));
  return array;
}

// The end of the file, behind the text that the checksum is of.
std::string index_tail(const std::string& body) {
  return fmt::format(",\n \"xxh3\": \"{}\"\n}}\n", hex(checksum(body.data(), body.size())));
}

std::string coverage_fault(const CheckpointTensor& tensor) {
  const std::string who = fmt::format("{} of {}", tensor.kind, tensor.name);
  if (tensor.cut < -1 || tensor.cut >= tensor.shape.rank()) {
    return fmt::format("{}: cut along dim {} of {}", who, tensor.cut, to_string(tensor.shape));
  }
  if (tensor.cut < 0) {
    if (tensor.pieces.size() == 1) return {};
    return fmt::format("{}: {} pieces of a tensor that is not cut", who, tensor.pieces.size());
  }
  std::int64_t end = 0;
  for (const CheckpointPiece& piece : tensor.pieces) {
    if (piece.begin != end || piece.count <= 0) {
      return fmt::format("{}: {} of dim {}: a piece begins at {}, the one before ends at {}", who,
                         piece.begin > end ? "elements are missing" : "elements are there twice", tensor.cut,
                         piece.begin, end);
    }
    end += piece.count;
  }
  if (end == tensor.shape[tensor.cut]) return {};
  return fmt::format("{}: the pieces hold {} of the {} indices of dim {}", who, end, tensor.shape[tensor.cut],
                     tensor.cut);
}

auto order_of(const CheckpointTensor& tensor) {
  return std::tie(tensor.kind, tensor.name);
}

}  // namespace

const CheckpointTensor* CheckpointInfo::find(const std::string& kind, const std::string& name) const {
  const auto it = std::lower_bound(tensors.begin(), tensors.end(), std::tie(kind, name),
                                   [](const CheckpointTensor& a, const auto& b) { return order_of(a) < b; });
  return it != tensors.end() && it->kind == kind && it->name == name ? &*it : nullptr;
}

void add_piece(TensorTable& tensors, CheckpointTensor piece) {
  WEFT_CHECK(piece.pieces.size() == 1, "{} pieces of {} at once", piece.pieces.size(), piece.name);
  const auto [it, is_new] = tensors.try_emplace({piece.kind, piece.name}, piece);
  if (is_new) return;
  CheckpointTensor& tensor = it->second;
  WEFT_CHECK(tensor.dtype == piece.dtype && tensor.shape == piece.shape && tensor.cut == piece.cut,
             "{} of {} is {} {} cut along {} on one rank, {} {} cut along {} on another", piece.kind,
             piece.name, name_of(tensor.dtype), to_string(tensor.shape), tensor.cut, name_of(piece.dtype),
             to_string(piece.shape), piece.cut);
  const CheckpointPiece& added = piece.pieces.front();
  for (const CheckpointPiece& there : tensor.pieces) {
    if (there.begin == added.begin && there.count == added.count) return;
  }
  tensor.pieces.push_back(added);
}

std::string arrange(CheckpointInfo& info) {
  std::set<std::string> files;
  for (const CheckpointFile& file : info.files) {
    if (file.name.empty() || file.name.find('/') != std::string::npos) {
      return fmt::format("'{}' is no name of a file in this folder", file.name);
    }
    if (!files.insert(file.name).second) return fmt::format("the file {} is listed twice", file.name);
  }
  std::sort(info.tensors.begin(), info.tensors.end(),
            [](const auto& a, const auto& b) { return order_of(a) < order_of(b); });
  for (std::size_t i = 0; i < info.tensors.size(); ++i) {
    CheckpointTensor& tensor = info.tensors[i];
    if (i > 0 && order_of(info.tensors[i - 1]) == order_of(tensor)) {
      return fmt::format("{} of {} is listed twice", tensor.kind, tensor.name);
    }
    std::sort(tensor.pieces.begin(), tensor.pieces.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    if (std::string fault = coverage_fault(tensor); !fault.empty()) return fault;
    for (const CheckpointPiece& piece : tensor.pieces) {
      if (!files.contains(piece.file)) {
        return fmt::format("{} of {} lies in {}, which is not listed", tensor.kind, tensor.name, piece.file);
      }
    }
  }
  return {};
}

std::string index_text(const CheckpointInfo& info) {
  Json json = {{"format", kFormat}, {"version", kVersion}, {"iteration", info.iteration}};
  try {
    json["model"] = Json::parse(info.model);
    json["trainer"] = Json::parse(info.trainer);
    json["layout"] = Json::parse(info.layout);
  } catch (const Json::exception& e) {
    WEFT_CHECK(false, "what a checkpoint should hold is no JSON: {}", e.what());
  }
  json["optimizer_steps"] = info.optimizer_steps;
  json["states"] = info.states;
  json["files"] = array_of(info.files);
  json["tensors"] = array_of(info.tensors);
  std::string body = json.dump(1);
  body.resize(body.size() - 2);  // without "\n}"
  return body + index_tail(body);
}

CheckpointInfo parse_index(const fs::path& path, const std::string& text) {
  const auto fault = [&](const std::string& what) {
    config_fail("{}: {}. Restore the file, or load another iteration", path.string(), what);
  };
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& e) {
    fault(fmt::format("cut short or damaged: {} bytes that are no JSON ({})", text.size(), e.what()));
  }
  if (!json.is_object() || json.value("format", Json()) != kFormat)
    fault("not the index of a weft checkpoint");
  if (json.value("version", Json()) != kVersion) {
    config_fail(
        "{}: version {}; this program reads version {}. Use the program that wrote it, or a newer one",
        path.string(), json.value("version", Json()).dump(), kVersion);
  }
  const std::size_t tail = index_tail("").size();
  const std::string body = text.substr(0, text.size() - std::min(tail, text.size()));
  if (body + index_tail(body) != text) {
    fault(
        fmt::format("cut short or changed after it was written: {} bytes, the first {} with the checksum {}; "
                    "the end says {}",
                    text.size(), body.size(), hex(checksum(body.data(), body.size())),
                    json.value("xxh3", Json()).dump()));
  }
  CheckpointInfo info;
  try {
    info.iteration = json.at("iteration");
    info.model = json.at("model").dump();
    info.trainer = json.at("trainer").dump();
    info.layout = json.at("layout").dump();
    info.optimizer_steps = json.at("optimizer_steps");
    info.states = json.at("states").get<std::vector<std::string>>();
    for (const Json& file : json.at("files")) info.files.push_back(file_from(file));
    for (const Json& tensor : json.at("tensors")) info.tensors.push_back(tensor_from(tensor));
  } catch (const std::exception& e) {
    fault(fmt::format("damaged: {}", e.what()));
  }
  if (const std::string problem = arrange(info); !problem.empty()) fault("contradicts itself: " + problem);
  return info;
}

std::string to_text(const ShardText& shard) {
  return Json{{"files", array_of(shard.files)}, {"pieces", array_of(shard.pieces)}}.dump();
}

ShardText shard_from_text(const std::string& text) {
  const Json json = Json::parse(text);
  ShardText shard;
  for (const Json& file : json.at("files")) shard.files.push_back(file_from(file));
  for (const Json& piece : json.at("pieces")) shard.pieces.push_back(tensor_from(piece));
  return shard;
}

std::string iteration_folder(std::int64_t iteration) {
  return fmt::format("iter_{:07d}", iteration);
}

std::vector<std::int64_t> iterations_in(const fs::path& save) {
  std::vector<std::int64_t> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(save, ignored)) {
    const std::string name = entry.path().filename();
    std::int64_t number = 0;
    const char* end = name.data() + name.size();
    if (name.starts_with("iter_") && std::from_chars(name.data() + 5, end, number).ptr == end &&
        name == iteration_folder(number) && fs::exists(entry.path() / kIndexFile, ignored)) {
      found.push_back(number);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace weft
