// Reads any slice of any global tensor of a checkpoint, whatever layout wrote it.
#pragma once

#include <memory>

#include "checkpoint/info.hpp"
#include "io/weight_source.hpp"

namespace weft {

class CheckpointReader final : public WeightSource {
 public:
  // `folder` as for find_checkpoint. Shards are mapped when first needed, and then checked whole against the
  // size and checksum in the index: a ConfigError names a damaged file with what was expected and found.
  explicit CheckpointReader(const std::filesystem::path& folder);
  ~CheckpointReader() override;

  const CheckpointInfo& info() const;
  // The text of a file that goes with the model ("tokenizer.json"); empty when there is none.
  std::string extra_file(const std::string& name) const;

  std::string description() const override;
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override;
  Shape shape(const std::string& name) const override;
  void read(Lane& lane, const std::string& name, int dim, std::int64_t begin, std::int64_t count,
            const Tensor& out) const override;
  // The same for a tensor of any kind ("exp_avg").
  void read_kind(Lane& lane, const std::string& kind, const std::string& name, int dim, std::int64_t begin,
                 std::int64_t count, const Tensor& out) const;

  // Reads every byte: one line for each file that is missing, too long, too short or damaged, and for each
  // piece that is not in its file as the index says. Empty: sound.
  std::vector<std::string> verify() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft
