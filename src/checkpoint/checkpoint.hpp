// Checkpoints: what a run needs to go on, addressed by global tensor, so that any layout reads what any
// layout wrote.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/reader.hpp"
#include "comm/communicator.hpp"
#include "data_parallel/param_buffer.hpp"
#include "optim/optimizer.hpp"

namespace weft {

// What the caller wants to find again beside the tensors.
struct CheckpointMeta {
  std::int64_t iteration = 0;  // names the folder
  std::string model;           // JSON of the ModelConfig
  std::string trainer = "{}";  // a JSON object: progress, schedule, seed, loss scaler, ...
  std::map<std::string, std::string> extra_files;  // name -> contents ("tokenizer.json"); rank 0's count
};

// tp: the ranks that hold the other parts of dense parameters. pp: the other stages.
struct CheckpointGroups {
  Communicator& world;
  Communicator& tp;
  Communicator& pp;
};

// The parameters of a rank that the same other ranks hold: dense ones, or those of experts.
struct CheckpointPart {
  ParamBuffer& buffer;
  Optimizer* optimizer;  // null: weights only
  Communicator& replicas;
};

struct SaveOptions {
  bool optimizer_state = true;
  // Iterations kept, this one included; older ones are deleted after a save has succeeded. 0: all.
  std::int64_t keep_last = 0;
};

// Collective over world. Writes SAVE/iter_XXXXXXX in parallel (replicas share the work) beside its name,
// flushes, renames, then names it in the latest file; SAVE is on a file system that all ranks see. Returns
// the folder.
//
// All or nothing: when any rank fails, all leave with one text, which says the rank, path, errno's text and
// byte counts: that rank by an Error, the others by Aborted. What was the latest checkpoint is untouched and
// still the latest. The bytes depend on nothing but the values and the layout. Where data-parallel ranks own
// slices, whole tensors are gathered for it in the memory of the gradients. Frozen weights are written like
// the others, from the compute dtype, without optimizer state.
std::filesystem::path save_checkpoint(Lane& lane, const CheckpointGroups& groups,
                                      const std::vector<CheckpointPart>& parts, const CheckpointMeta& meta,
                                      const std::filesystem::path& save, const SaveOptions& options = {});

struct LoadOptions {
  bool optimizer_state =
      true;  // moments and the number of updates; false: weights only (--finetune, --no-load-optim)
  // Tensors that this rank does not have are no error (it holds one stage of the model, or some experts).
  bool part_of_model = false;
};

// Reads what this rank owns of master weights and optimizer state and publishes it; what other ranks own of
// the model's weights the caller then gathers. Not collective. ConfigError naming every tensor that is
// missing, left over or of another shape; nothing is written then. Optimizer state of tensors that are frozen
// now is passed over; tensors that were frozen when the checkpoint was written have none, and start with
// zeros.
void load_checkpoint(Lane& lane, const CheckpointReader& reader, const std::vector<CheckpointPart>& parts,
                     const LoadOptions& options = {});

// Weights alone, from any source: into the master weights, published as above, or without an optimizer
// straight into the buffer's. Errors as load_checkpoint.
void load_weights(Lane& lane, const WeightSource& source, const std::vector<CheckpointPart>& parts,
                  bool part_of_model = false);

// Writes a checkpoint of weights alone, tensor by tensor, without a model: conversion. F32, or F64 where
// `dtype` says so. One process; all or nothing as save_checkpoint.
std::filesystem::path write_weights(Lane& lane, const WeightSource& source, const CheckpointMeta& meta,
                                    const std::filesystem::path& save, DType dtype = DType::kF32,
                                    std::uint64_t shard_bytes = 4'000'000'000);

// Keeps other runs out of a save folder until it is destroyed (flock; rank 0 holds it for the run). Makes the
// folder, and removes what a killed run left half written in it. ConfigError naming the process and host that
// hold it, or why the folder cannot be written.
class SaveFolderLock {
 public:
  explicit SaveFolderLock(const std::filesystem::path& save);
  ~SaveFolderLock();
  SaveFolderLock(const SaveFolderLock&) = delete;
  SaveFolderLock& operator=(const SaveFolderLock&) = delete;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace weft
