#include "checkpoint/reader.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "core/check.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"
#include "ops/elementwise.hpp"

namespace weft {
namespace {

// A range of dim `dim`, which is the first or the last: other ranges are no views.
Tensor range_of(const Tensor& tensor, int dim, std::int64_t begin, std::int64_t count) {
  if (dim == 0) return tensor.slice(begin, count);
  WEFT_CHECK(dim == tensor.rank() - 1, "a range of dim {} of {}", dim, to_string(tensor.shape()));
  return tensor.slice_columns(begin, count);
}

Shape with_dim(Shape shape, int dim, std::int64_t size) {
  if (dim >= 0) shape.set(dim, size);
  return shape;
}

// What is wrong with a file's bytes; empty: nothing.
std::string damage(const CheckpointInfo& info, const CheckpointFile& file) {
  const std::string path = (info.folder / file.name).string();
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) {
    return fmt::format("{}: {}; the index lists it with {} bytes", path, error.message(), file.bytes);
  }
  if (size != file.bytes) {
    return fmt::format("{}: {}: {} bytes, the index says {}", path,
                       size < file.bytes ? "cut short" : "too long", size, file.bytes);
  }
  const FileDigest found = file_digest(path);
  if (found.checksum == file.checksum && found.bytes == file.bytes) return {};
  return fmt::format("{}: damaged: its {} bytes have the checksum {:016x}, the index says {:016x}", path,
                     found.bytes, found.checksum, file.checksum);
}

// Why a file, sound or not, does not hold a piece as the index says; empty: it does.
std::string piece_fault(const SafetensorsFile& file, const CheckpointTensor& tensor,
                        const CheckpointPiece& piece) {
  if (!file.contains(piece.key)) return fmt::format("{}: no tensor {}", file.path().string(), piece.key);
  const Tensor held = file.get(piece.key);
  const Shape shape = with_dim(tensor.shape, tensor.cut, piece.count);
  if (held.shape() == shape && held.dtype() == tensor.dtype) return {};
  return fmt::format("{}: {} is {} {}, the index says {} {}", file.path().string(), piece.key,
                     name_of(held.dtype()), to_string(held.shape()), name_of(tensor.dtype), to_string(shape));
}

}  // namespace

struct CheckpointReader::State {
  CheckpointInfo info;
  std::mutex mutex;  // guards `open`
  std::map<std::string, std::unique_ptr<SafetensorsFile>> open;

  // Maps a shard, checked whole.
  const SafetensorsFile& file(const std::string& name) {
    const std::lock_guard lock(mutex);
    std::unique_ptr<SafetensorsFile>& slot = open[name];
    if (!slot) {
      check(name);
      slot = std::make_unique<SafetensorsFile>(info.folder / name);
    }
    return *slot;
  }

  void check(const std::string& name) const {
    const auto listed = std::find_if(info.files.begin(), info.files.end(),
                                     [&](const CheckpointFile& file) { return file.name == name; });
    WEFT_CHECK(listed != info.files.end(), "{} is not in the index", name);
    if (const std::string fault = damage(info, *listed); !fault.empty()) {
      config_fail("{}. Restore the file, or load another iteration", fault);
    }
  }

  const CheckpointTensor& tensor(const std::string& kind, const std::string& name) const {
    const CheckpointTensor* found = info.find(kind, name);
    if (found == nullptr) config_fail("{}: holds no {} of {}", info.folder.string(), kind, name);
    return *found;
  }
};

CheckpointReader::CheckpointReader(const std::filesystem::path& folder) : state_(std::make_unique<State>()) {
  state_->info = read_checkpoint_info(folder);
}

CheckpointReader::~CheckpointReader() = default;

const CheckpointInfo& CheckpointReader::info() const {
  return state_->info;
}

std::string CheckpointReader::extra_file(const std::string& name) const {
  const auto& files = state_->info.files;
  if (std::none_of(files.begin(), files.end(), [&](const auto& file) { return file.name == name; }))
    return {};
  state_->check(name);
  return read_file(state_->info.folder / name);
}

std::string CheckpointReader::description() const {
  return state_->info.folder.string();
}

std::vector<std::string> CheckpointReader::names() const {
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : state_->info.tensors) {
    if (tensor.kind == kWeightKind) names.push_back(tensor.name);
  }
  return names;
}

bool CheckpointReader::contains(const std::string& name) const {
  return state_->info.find(kWeightKind, name) != nullptr;
}

Shape CheckpointReader::shape(const std::string& name) const {
  return state_->tensor(kWeightKind, name).shape;
}

void CheckpointReader::read(Lane& lane, const std::string& name, int dim, std::int64_t begin,
                            std::int64_t count, const Tensor& out) const {
  read_kind(lane, kWeightKind, name, dim, begin, count, out);
}

void CheckpointReader::read_kind(Lane& lane, const std::string& kind, const std::string& name, int dim,
                                 std::int64_t begin, std::int64_t count, const Tensor& out) const {
  const CheckpointTensor& tensor = state_->tensor(kind, name);
  WEFT_CHECK(dim < tensor.shape.rank() &&
                 (dim < 0 || (begin >= 0 && count >= 0 && begin + count <= tensor.shape[dim])),
             "[{}, +{}) of dim {} of {} {}", begin, count, dim, name, to_string(tensor.shape));
  expect_shape(out, with_dim(tensor.shape, dim, count), name.c_str());
  for (const CheckpointPiece& piece : tensor.pieces) {
    // What the piece and the wanted range have in common, along the dim that the pieces cut.
    std::int64_t first = 0, end = 0;
    if (tensor.cut >= 0) {
      first = dim == tensor.cut ? std::max(begin, piece.begin) : piece.begin;
      end = piece.begin + piece.count;
      if (dim == tensor.cut) end = std::min(end, begin + count);
      if (first >= end) continue;
    }
    const SafetensorsFile& file = state_->file(piece.file);
    if (const std::string fault = piece_fault(file, tensor, piece); !fault.empty()) config_fail("{}", fault);
    Tensor from = file.get(piece.key), to = out;
    if (tensor.cut >= 0) {
      from = range_of(from, tensor.cut, first - piece.begin, end - first);
      to = range_of(to, tensor.cut, first - (dim == tensor.cut ? begin : 0), end - first);
    }
    if (dim >= 0 && dim != tensor.cut) from = range_of(from, dim, begin, count);
    ops::copy(lane, from, to);
  }
}

std::vector<std::string> CheckpointReader::verify() const {
  const CheckpointInfo& info = state_->info;
  std::vector<std::string> problems;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> sound;
  for (const CheckpointFile& file : info.files) {
    try {
      if (std::string fault = damage(info, file); !fault.empty()) {
        problems.push_back(std::move(fault));
      } else if (file.name.ends_with(".safetensors")) {
        sound[file.name] = std::make_unique<SafetensorsFile>(info.folder / file.name);
      }
    } catch (const Error& e) {
      problems.emplace_back(e.what());
    }
  }
  for (const CheckpointTensor& tensor : info.tensors) {
    for (const CheckpointPiece& piece : tensor.pieces) {
      const auto file = sound.find(piece.file);
      if (file == sound.end()) continue;
      if (std::string fault = piece_fault(*file->second, tensor, piece); !fault.empty()) {
        problems.push_back(std::move(fault));
      }
    }
  }
  return problems;
}

}  // namespace weft
