// A small model's parameters, made by hand for any layout, with values that are a function of the global
// element.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "checkpoint/checkpoint.hpp"
#include "comm/local/launcher.hpp"
#include "ops/elementwise.hpp"

namespace weft::test {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = fs::temp_directory_path() / "weft-checkpoint-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Every file below a folder, with its bytes.
inline std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::stringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[fs::relative(entry.path(), folder)] = text.str();
  }
  return files;
}

struct Layout {
  int dp = 1, tp = 1;
  int ranks() const { return dp * tp; }
  std::string text() const { return "dp" + std::to_string(dp) + " tp" + std::to_string(tp); }
};

struct GlobalTensor {
  std::string name;
  Shape shape;
  int cut;
};

// Parameters in order; each is one or several tensors, one below the other. The vocabulary (11) is padded.
inline std::vector<std::vector<GlobalTensor>> small_model() {
  return {
      {{"embedding.word_embeddings.weight", {11, 6}, 0}},
      {{"layer.input_layernorm.weight", {6}, -1}},
      {{"layer.linear_q.weight", {8, 6}, 0},
       {"layer.linear_k.weight", {4, 6}, 0},
       {"layer.linear_v.weight", {4, 6}, 0}},
      {{"layer.linear_q.bias", {8}, 0}, {"layer.linear_k.bias", {4}, 0}, {"layer.linear_v.bias", {4}, 0}},
      {{"layer.linear_proj.weight", {6, 8}, 1}},
      {{"layer.linear_gate.weight", {12, 6}, 0}, {"layer.linear_up.weight", {12, 6}, 0}},
      {{"layer.linear_fc2.weight", {6, 12}, 1}},
      {{"layer.linear_fc2.bias", {6}, -1}},
  };
}

// The value of an element of a global tensor: needs more bits than a bf16 has.
inline float value_of(const std::string& kind, const std::string& name, std::int64_t element, int version) {
  const std::size_t h =
      std::hash<std::string>()(kind + "|" + name) + static_cast<std::size_t>(version) * 7919;
  return static_cast<float>((h * 31 + static_cast<std::size_t>(element) * 1013) % 100'003) / 1000.0f - 50.0f;
}

// One rank of a layout: its groups, parameters and optimizer.
class Rank {
 public:
  Rank(Communicator& world, const Layout& layout, DType dtype = DType::kF32, bool sgd = false,
       const std::vector<std::vector<GlobalTensor>>& model = small_model())
      : arena_(Arena::host(1 << 20)), workers_(1), lane_{*arena_, workers_, {}}, world_(world) {
    tp_ = world.split(world.rank() / layout.tp, world.rank(), "tp");
    dp_ = world.split(world.rank() % layout.tp, world.rank(), "dp");
    pp_ = self_communicator("pp");
    for (const auto& tensors : model) {
      std::vector<LogicalTensor> parts;
      for (const GlobalTensor& tensor : tensors) parts.push_back(part_of(tensor));
      params_.add(tensors.front().name + ".param", std::move(parts),
                  {.decay = true, .own_bucket = params_.all().empty()});
    }
    params_.add_tied("output_layer.weight", *params_.all().front());
    buffer_ = std::make_unique<ParamBuffer>(lane_, params_, *dp_, ParamBufferOptions{.dtype = dtype});
    optimizer_ = sgd ? make_sgd(lane_, *buffer_, {}) : make_adamw(lane_, *buffer_, {});
  }

  Lane& lane() { return lane_; }
  ParamBuffer& buffer() { return *buffer_; }
  Optimizer& optimizer() { return *optimizer_; }
  CheckpointGroups groups() { return {world_, *tp_, *pp_}; }
  std::vector<CheckpointPart> parts() { return {{*buffer_, optimizer_.get(), *dp_}}; }
  std::vector<CheckpointPart> weights_alone() { return {{*buffer_, nullptr, *dp_}}; }

  std::vector<Optimizer::State> kinds() const {
    std::vector<Optimizer::State> kinds = optimizer_->state();
    kinds.push_back({kWeightKind, optimizer_->master()});
    return kinds;
  }

  // Every element of every kind as value_of says, padding 0.
  void fill(int version) {
    for (const auto& [kind, flat] : kinds()) {
      each(flat, [&, k = kind](const std::string& name, std::int64_t element, float& x) {
        x = element < 0 ? 0 : value_of(k, name, element, version);
      });
    }
    optimizer_->set_steps(version);
    optimizer_->publish(lane_);
  }

  void fill_with_rubbish() {
    for (const auto& [kind, flat] : kinds()) ops::fill(lane_, flat, -777);
    ops::fill(lane_, buffer_->weights(), -777);
  }

  // What fill() wrote is there, and the weights in use are the master's, rounded.
  void expect(int version, const std::vector<Optimizer::State>& which) {
    for (const auto& [kind, flat] : which) {
      each(flat, [&, k = kind](const std::string& name, std::int64_t element, const float& x) {
        ASSERT_EQ(x, element < 0 ? 0 : value_of(k, name, element, version))
            << k << " " << name << " " << element;
      });
    }
    const Tensor rounded = ops::cast(lane_, optimizer_->master(), buffer_->weights().dtype(), "rounded");
    EXPECT_EQ(std::memcmp(rounded.raw(), buffer_->weights().raw(), rounded.bytes()), 0);
  }

 private:
  LogicalTensor part_of(const GlobalTensor& tensor) const {
    LogicalTensor part = {.name = tensor.name, .global = tensor.shape, .cut = tensor.cut};
    if (tensor.cut < 0) return part;
    const std::int64_t unit = tensor.shape[0] == 11 ? 4 : 1;  // the vocabulary, padded as Megatron does
    const std::int64_t all = unit * tp_->size();
    part.count = (tensor.shape[tensor.cut] + all - 1) / all * unit;
    part.begin = part.count * tp_->rank();
    return part;
  }

  // body(name, global element or −1 for padding, value) for each element of this rank's parameters.
  template <class Body>
  void each(const Tensor& flat, const Body& body) {
    for (const ParamBuffer::Slot& slot : buffer_->slots()) {
      for (const LogicalTensor& part : slot.param->parts()) {
        const Tensor local = slot.param->part_of(ParamBuffer::piece(flat, slot), part);
        const std::int64_t columns = local.rank() > 1 ? local.dim(1) : 1;
        const std::int64_t global_columns = part.global.rank() > 1 ? part.global[1] : 1;
        for (std::int64_t i = 0; i < local.elems(); ++i) {
          const std::int64_t row = i / columns + (part.cut == 0 ? part.begin : 0);
          const std::int64_t column = i % columns + (part.cut == 1 ? part.begin : 0);
          const bool real = row < part.global[0] && column < global_columns;
          body(part.name, real ? row * global_columns + column : -1, local.data<float>()[i]);
        }
      }
    }
  }

  std::unique_ptr<Arena> arena_;
  Workers workers_;
  Lane lane_;
  Communicator& world_;
  std::unique_ptr<Communicator> tp_, dp_, pp_;
  ParamSet params_;
  std::unique_ptr<ParamBuffer> buffer_;
  std::unique_ptr<Optimizer> optimizer_;
};

inline void run_ranks(const Layout& layout, const std::function<void(Communicator& world)>& body) {
  run_local_ranks({.ranks = layout.ranks(), .timeout = std::chrono::seconds(30)}, body);
}

inline CheckpointMeta meta_of(std::int64_t iteration) {
  return {.iteration = iteration,
          .model = R"({"num_layers":1})",
          .trainer = R"({"consumed_samples":96,"lr":0.0003})",
          .extra_files = {{"tokenizer.json", "{\"a\": 1}"}}};
}

// Saves values of `version` as that iteration, from ranks of a layout.
inline void save(const fs::path& folder, const Layout& layout, int version, const SaveOptions& options = {},
                 DType dtype = DType::kF32) {
  run_ranks(layout, [&](Communicator& world) {
    Rank rank(world, layout, dtype);
    rank.fill(version);
    save_checkpoint(rank.lane(), rank.groups(), rank.parts(), meta_of(version), folder, options);
  });
}

// The text of the exception that `body` throws; empty if it throws none.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

template <class Body>
std::string config_error_of(const Body& body) {
  try {
    body();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return {};
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
}

}  // namespace weft::test
