// What a checkpoint holds, as its index.json says.
//
//   SAVE/latest_checkpointed_iteration.txt     "123"
//   SAVE/iter_0000123/index.json               what follows, as JSON
//   SAVE/iter_0000123/shard_00000.safetensors  one for each rank that had something to write
//   SAVE/iter_0000123/tokenizer.json, ...      files that go with the model
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/shape.hpp"

namespace weft {

// Indices [begin, begin + count) of the tensor's dim `cut`, under `key` in `file`.
struct CheckpointPiece {
  std::string file, key;
  std::int64_t begin = 0, count = 0;
};

// One global tensor. `kind`: "weight" (master weights: F32, or F64 for fp64 models), or the name of an
// optimizer state
// ("exp_avg"). `name` is canonical; the shape has no padding. The pieces cover every element exactly once.
struct CheckpointTensor {
  std::string kind, name;
  DType dtype = DType::kF32;
  Shape shape;
  int cut = -1;  // dim that the pieces cut; −1: one piece
  std::vector<CheckpointPiece> pieces;
};

struct CheckpointFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // XXH3 of all of it
};

struct CheckpointInfo {
  std::filesystem::path folder;  // .../iter_0000123
  std::int64_t iteration = 0;
  std::string model;    // JSON of the ModelConfig
  std::string trainer;  // the trainer's JSON object
  std::string layout;   // JSON: how it was written ({"ranks": 4, "dp": 2, "tp": 2}); not needed to read it
  std::int64_t optimizer_steps = 0;  // updates made: Adam's t
  std::vector<std::string> states;   // kinds beside "weight"; empty: saved without the optimizer
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointFile> files;

  const CheckpointTensor* find(const std::string& kind, const std::string& name) const;
};

inline constexpr char kWeightKind[] = "weight";

// The folder is a checkpoint, or holds some: it has an index.json, a latest file, or iter_ folders. (Else it
// may be a Hugging Face folder, or empty.)
bool has_checkpoint(const std::filesystem::path& folder);
// The iteration's folder that `folder` means: itself when it has an index.json, else the one its latest file
// names. ConfigError naming file and fix when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& folder);
// find_checkpoint, and its index.json read and checked: every piece lies in a listed file and every element
// is covered exactly once. ConfigError naming the file and the field when it is cut, damaged or of an unknown
// version. Opens no shard.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder);

}  // namespace weft
