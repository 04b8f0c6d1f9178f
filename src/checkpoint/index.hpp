// index.json: text of a CheckpointInfo and back. Its last member is a checksum of all text before it.
#pragma once

#include <map>
#include <utility>

#include "checkpoint/info.hpp"

namespace weft {

// Adds one file's pieces; several pieces of a tensor must agree in dtype, shape and cut. A range that is
// already there is passed over: some tensors lie whole on several ranks.
using TensorTable = std::map<std::pair<std::string, std::string>, CheckpointTensor>;  // by kind and name
void add_piece(TensorTable& tensors, CheckpointTensor piece);
// Sorts tensors and pieces, and checks that pieces lie in listed files and cover every element exactly once;
// the text of the first fault, or empty.
std::string arrange(CheckpointInfo& info);

std::string index_text(const CheckpointInfo& info);
// ConfigError, naming `path`, when the text is cut, changed, of an unknown version, or contradicts itself.
// Sets all but the folder.
CheckpointInfo parse_index(const std::filesystem::path& path, const std::string& text);

// What one rank has written, as the text that it sends to rank 0.
struct ShardText {
  std::vector<CheckpointFile> files;
  std::vector<CheckpointTensor> pieces;  // each with one piece
};
std::string to_text(const ShardText& shard);
ShardText shard_from_text(const std::string& text);

// "iter_0000123"
std::string iteration_folder(std::int64_t iteration);
inline constexpr char kIndexFile[] = "index.json";
inline constexpr char kLatestFile[] = "latest_checkpointed_iteration.txt";
// Numbers of the finished iterations in a save folder, ascending.
std::vector<std::int64_t> iterations_in(const std::filesystem::path& save);

}  // namespace weft
