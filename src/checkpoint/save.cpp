#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "checkpoint/agreement.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/save_folder.hpp"
#include "core/check.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"
#include "ops/elementwise.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

// What one rank writes of one kind of one tensor.
struct Portion {
  CheckpointTensor tensor;  // with this one piece
  const ParamBuffer::Slot* slot;
  const LogicalTensor* part;

  // Out of all values of its kind; what is not trained has its weight alone.
  Tensor values(const Tensor& full) const;
};

Tensor without_padding(const Tensor& local, const LogicalTensor& part) {
  if (part.cut < 0) return local;
  if (part.cut == 0) return local.slice(0, part.real_count());
  WEFT_CHECK(part.cut == local.rank() - 1, "{} is cut along dim {} of {}", part.name, part.cut,
             to_string(part.global));
  return local.slice_columns(0, part.real_count());
}

Tensor Portion::values(const Tensor& full) const {
  const Param& param = *slot->param;
  const Tensor from = param.trains() ? ParamBuffer::piece(full, *slot) : param.weight();
  return without_padding(param.part_of(from, *part), *part);
}

// Replicas share the work: the data-parallel rank that writes each slot. The largest go first, each to the
// rank that has least to do; all ranks find the same, because their slots have the same sizes.
std::vector<int> writers_of(const std::vector<ParamBuffer::Slot>& slots, int ranks) {
  std::vector<std::size_t> order(slots.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return slots[a].elems > slots[b].elems; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
  std::vector<int> writers(slots.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += slots[i].elems;
    writers[i] = static_cast<int>(least - load.begin());
  }
  return writers;
}

// What several tensor-parallel ranks hold is written by the first of them; what another stage owns, there.
// Kind by kind; frozen weights have no other kind.
std::vector<Portion> portions_of_rank(const CheckpointGroups& groups, const Communicator& replicas,
                                      const std::vector<ParamBuffer::Slot>& slots,
                                      const std::vector<Optimizer::State>& kinds, const std::string& file) {
  const std::vector<int> writers = writers_of(slots, replicas.size());
  std::vector<Portion> portions;
  for (const auto& [kind, flat] : kinds) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const ParamBuffer::Slot& slot = slots[i];
      if (writers[i] != replicas.rank() || slot.param->traits().copy) continue;
      if (!slot.param->trains() && kind != kWeightKind) continue;
      for (const LogicalTensor& part : slot.param->parts()) {
        if (!part.primary(groups.tp.rank()) || (part.cut >= 0 && part.real_count() == 0)) continue;
        const CheckpointPiece piece = {.file = file,
                                       .key = kind + "/" + part.name,
                                       .begin = part.cut < 0 ? 0 : part.begin,
                                       .count = part.cut < 0 ? 0 : part.real_count()};
        portions.push_back({.tensor = {.kind = kind,
                                       .name = part.name,
                                       .dtype = flat.dtype(),
                                       .shape = part.global,
                                       .cut = part.cut,
                                       .pieces = {piece}},
                            .slot = &slot,
                            .part = &part});
      }
    }
  }
  return portions;
}

// This rank's file, written kind by kind.
class Shard {
 public:
  // `portions`: of each part of the parameters.
  Shard(const fs::path& path, const std::vector<std::string>& kinds,
        const std::vector<std::vector<Portion>>& portions)
      : path_(path), portions_(portions) {
    std::vector<SafetensorsWriter::Entry> entries;
    // In the order of writing: kind by kind, and of each kind part by part.
    for (const std::string& kind : kinds) {
      for (const std::vector<Portion>& of_part : portions_) {
        for (const Portion& portion : of_part) {
          if (portion.tensor.kind != kind) continue;
          Shape shape = portion.part->global;
          if (portion.part->cut >= 0) shape.set(portion.part->cut, portion.part->real_count());
          entries.push_back({portion.tensor.pieces.front().key, portion.tensor.dtype, shape});
        }
      }
    }
    writer_.emplace(path, entries);
  }

  // Tensors one by one; those that are not one block of host memory in the type of the file go through a
  // copy, one at a time.
  void write(Lane& lane, const std::string& kind, std::size_t part, const Tensor& full) {
    for (const Portion& portion : portions_[part]) {
      if (portion.tensor.kind != kind) continue;
      const Tensor values = portion.values(full);
      const DType dtype = portion.tensor.dtype;
      if (values.contiguous() && values.device().kind == DeviceKind::kCpu && values.dtype() == dtype) {
        writer_->write(values);
        continue;
      }
      const auto memory =
          std::make_unique<std::byte[]>(static_cast<std::size_t>(values.elems()) * bytes_of(dtype));
      const Tensor copy = Tensor::borrow(memory.get(), dtype, values.shape());
      ops::copy(lane, values, copy);
      writer_->write(copy);
    }
  }

  CheckpointFile commit() {
    writer_->commit();
    return {path_.filename().string(), writer_->digest().bytes, writer_->digest().checksum};
  }

 private:
  fs::path path_;
  const std::vector<std::vector<Portion>>& portions_;
  std::optional<SafetensorsWriter> writer_;
};

std::vector<CheckpointFile> write_extra_files(const fs::path& folder, const CheckpointMeta& meta) {
  std::vector<CheckpointFile> files;
  for (const auto& [name, text] : meta.extra_files) {
    WEFT_CHECK(name != kIndexFile && name.find('/') == std::string::npos && !name.starts_with("shard_"),
               "a checkpoint cannot hold a file named {}", name);
    write_file(folder / name, text);
    files.push_back({name, text.size(), checksum(text.data(), text.size())});
  }
  return files;
}

// Everything the ranks have written, as one index in the unfinished folder.
void write_index(const fs::path& folder, CheckpointInfo info, const std::vector<ShardText>& shards) {
  TensorTable tensors;
  for (const ShardText& shard : shards) {
    info.files.insert(info.files.end(), shard.files.begin(), shard.files.end());
    for (const CheckpointTensor& piece : shard.pieces) add_piece(tensors, piece);
  }
  for (auto& [name, tensor] : tensors) info.tensors.push_back(std::move(tensor));
  const std::string fault = arrange(info);
  WEFT_CHECK(fault.empty(), "what the ranks have written is no whole model: {}", fault);
  write_file(folder / kIndexFile, index_text(info));
}

std::string shard_name(std::int64_t number) {
  return fmt::format("shard_{:05d}.safetensors", number);
}

CheckpointInfo info_of(const CheckpointMeta& meta, const std::string& layout) {
  CheckpointInfo info;
  info.iteration = meta.iteration;
  info.model = meta.model;
  info.trainer = meta.trainer;
  info.layout = layout;
  return info;
}

void remove_unfinished(const fs::path& unfinished) {
  std::error_code ignored;
  fs::remove_all(unfinished, ignored);
}

void prepare(const fs::path& unfinished) {
  fs::remove_all(unfinished);  // of an earlier try
  fs::create_directories(unfinished);
}

}  // namespace

fs::path save_checkpoint(Lane& lane, const CheckpointGroups& groups, const std::vector<CheckpointPart>& parts,
                         const CheckpointMeta& meta, const fs::path& save, const SaveOptions& options) {
  // Of each part the same kinds, in the same order.
  const auto kinds_of = [&](const CheckpointPart& part) {
    std::vector<Optimizer::State> kinds = {{kWeightKind, part.optimizer->master()}};
    if (!options.optimizer_state) return kinds;
    for (Optimizer::State& state : part.optimizer->state()) kinds.push_back(std::move(state));
    return kinds;
  };
  CheckpointInfo info =
      info_of(meta, fmt::format(R"({{"ranks": {}, "dp": {}, "tp": {}, "pp": {}}})", groups.world.size(),
                                parts.front().replicas.size(), groups.tp.size(), groups.pp.size()));
  std::vector<std::string> kinds;
  for (const Optimizer::State& kind : kinds_of(parts.front())) kinds.push_back(kind.name);
  info.states.assign(kinds.begin() + 1, kinds.end());
  if (options.optimizer_state) info.optimizer_steps = parts.front().optimizer->steps();

  const bool first = groups.world.rank() == 0;
  const fs::path unfinished = unfinished_folder(save, meta.iteration);
  Agreement ranks(
      lane, groups.world,
      fmt::format("saving iteration {} failed on rank {} (dp {}, tp {}, pp {})", meta.iteration,
                  groups.world.rank(), parts.front().replicas.rank(), groups.tp.rank(), groups.pp.rank()));
  try {
    ranks.all([&] {
      if (first) prepare(unfinished);
    });
    ShardText mine;
    const std::string file = shard_name(groups.world.rank());
    std::vector<std::vector<ParamBuffer::Slot>> slots;
    std::vector<std::vector<Portion>> portions;
    slots.reserve(parts.size());  // portions refer to them
    std::size_t count = 0;
    for (const CheckpointPart& part : parts) {
      const ParamBuffer& buffer = part.buffer;
      std::vector<ParamBuffer::Slot>& all = slots.emplace_back(buffer.slots());
      all.insert(all.end(), buffer.frozen().begin(), buffer.frozen().end());
      all.insert(all.end(), buffer.states().begin(), buffer.states().end());
      portions.push_back(portions_of_rank(groups, part.replicas, all, kinds_of(part), file));
      count += portions.back().size();
    }
    std::optional<Shard> shard;
    ranks.all([&] {
      if (count > 0) shard.emplace(unfinished / file, kinds, portions);
    });
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      for (std::size_t part = 0; part < parts.size(); ++part) {
        // Gathering is a collective: a rank that cannot write must not be missed in it.
        const Tensor full = parts[part].buffer.gather_owned(lane, kinds_of(parts[part])[kind].flat);
        ranks.all([&] {
          if (shard) shard->write(lane, kinds[kind], part, full);
        });
      }
    }
    ranks.all([&] {
      if (shard) mine.files.push_back(shard->commit());
      for (const std::vector<Portion>& of_part : portions) {
        for (const Portion& portion : of_part) mine.pieces.push_back(portion.tensor);
      }
    });
    const std::vector<std::string> texts = ranks.gather(to_text(mine));
    ranks.all([&] {
      if (!first) return;
      std::vector<ShardText> shards;
      for (const std::string& text : texts) shards.push_back(shard_from_text(text));
      shards.push_back({.files = write_extra_files(unfinished, meta), .pieces = {}});
      write_index(unfinished, info, shards);
      publish_iteration(save, meta.iteration);
    });
  } catch (const Error&) {
    // Only when all ranks have stopped; what a run that was aborted has begun is removed by the next try.
    if (ranks.failed() && first) remove_unfinished(unfinished);
    throw;
  }
  if (first && options.keep_last > 0) delete_older(save, meta.iteration, options.keep_last);
  return save / iteration_folder(meta.iteration);
}

fs::path write_weights(Lane& lane, const WeightSource& source, const CheckpointMeta& meta,
                       const fs::path& save, DType dtype, std::uint64_t shard_bytes) {
  // Which tensors go into which file.
  std::vector<std::vector<std::string>> files(1);
  std::uint64_t bytes = 0;
  for (const std::string& name : source.names()) {
    const std::uint64_t more = static_cast<std::uint64_t>(source.shape(name).elems()) * bytes_of(dtype);
    if (bytes > 0 && bytes + more > shard_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(name);
    bytes += more;
  }

  const fs::path unfinished = unfinished_folder(save, meta.iteration);
  try {
    prepare(unfinished);
    std::vector<ShardText> shards;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string file = shard_name(static_cast<std::int64_t>(i));
      std::vector<SafetensorsWriter::Entry> entries;
      ShardText& shard = shards.emplace_back();
      for (const std::string& name : files[i]) {
        const std::string key = std::string(kWeightKind) + "/" + name;
        entries.push_back({key, dtype, source.shape(name)});
        shard.pieces.push_back({kWeightKind, name, dtype, source.shape(name), -1, {{file, key, 0, 0}}});
      }
      SafetensorsWriter writer(unfinished / file, entries);
      for (const SafetensorsWriter::Entry& entry : entries) {
        const auto size = static_cast<std::size_t>(entry.shape.elems()) * bytes_of(dtype);
        const auto memory = std::make_unique<std::byte[]>(size);
        const Tensor whole = Tensor::borrow(memory.get(), dtype, entry.shape);
        source.read(lane, entry.name.substr(sizeof kWeightKind), -1, 0, 0, whole);
        writer.write(whole);
      }
      writer.commit();
      shard.files.push_back({file, writer.digest().bytes, writer.digest().checksum});
    }
    shards.push_back({.files = write_extra_files(unfinished, meta), .pieces = {}});
    write_index(unfinished, info_of(meta, R"({"ranks": 1, "dp": 1, "tp": 1})"), shards);
    return publish_iteration(save, meta.iteration);
  } catch (...) {
    remove_unfinished(unfinished);
    throw;
  }
}

}  // namespace weft
