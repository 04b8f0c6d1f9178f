// How the tensors of another program's files are made of a model's canonical tensors. One table serves both
// ways: import reads any slice of a canonical tensor through it, export puts foreign tensors together from
// canonical ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "model/config.hpp"

namespace weft {

// A tensor as users and checkpoints know it: weights [out, in], biases and norms [out]; q, k, v and gate, up
// apart; the vocabulary unpadded.
struct CanonicalTensor {
  std::string name;
  Shape shape;
};

// Every canonical tensor of the model, in the order of the forward pass.
std::vector<CanonicalTensor> canonical_tensors(const ModelConfig& config);

// Rows [foreign_row, foreign_row + count) of a foreign tensor are rows [canonical_row, ...) of a canonical
// one.
struct ForeignPart {
  std::string canonical;
  std::int64_t canonical_row = 0;
  std::int64_t foreign_row = 0;
  std::int64_t count = 0;
};

struct ForeignTensor {
  std::string name;
  Shape shape;              // as stored
  bool transposed = false;  // stored [in, out]: "rows" above are its columns
  std::vector<ForeignPart> parts;
};

// Indices [begin, begin + count) of dim `dim`; dim −1: everything.
struct TensorRange {
  int dim = -1;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

class TensorMap {
 public:
  // Every canonical tensor must be covered exactly once, inside one foreign tensor, and every foreign row be
  // used.
  TensorMap(std::vector<CanonicalTensor> canonical, std::vector<ForeignTensor> foreign);

  const std::vector<CanonicalTensor>& canonical() const { return canonical_; }
  const std::vector<ForeignTensor>& foreign() const { return foreign_; }
  bool contains(const std::string& canonical) const { return index_.contains(canonical); }
  const Shape& shape_of(const std::string& canonical) const;
  // The foreign tensor that holds this canonical one.
  const ForeignTensor& holder_of(const std::string& canonical) const;
  // Canonical names in the order in which Assembler takes them.
  std::vector<std::string> order() const;

  // Copies a range of a canonical tensor out of its (whole, host) foreign tensor. `destination` is host
  // memory of the range's shape, of any floating type and row distance.
  void read(const Tensor& foreign, const std::string& canonical, const TensorRange& range,
            const Tensor& destination) const;

 private:
  friend class Assembler;
  std::size_t index_of(const std::string& canonical) const;
  std::vector<CanonicalTensor> canonical_;
  std::vector<ForeignTensor> foreign_;
  std::map<std::string, std::size_t> index_;  // canonical name -> canonical_
  std::vector<std::size_t> holder_;           // canonical_ -> foreign_
};

// Puts foreign tensors together from whole canonical tensors, supplied in TensorMap::order(). Holds one
// foreign tensor at a time, and none where a canonical tensor can be handed on as it is.
class Assembler {
 public:
  // Called once per foreign tensor, in the map's order; the tensor is contiguous and valid during the call.
  using Emit = std::function<void(const ForeignTensor&, const Tensor&)>;
  // Emits `dtype`, or the type of the (first) canonical tensor when none is given.
  Assembler(const TensorMap& map, std::optional<DType> dtype, Emit emit);
  ~Assembler();
  Assembler(const Assembler&) = delete;
  Assembler& operator=(const Assembler&) = delete;

  void add(const std::string& canonical, const Tensor& full);
  // Every tensor has been supplied.
  bool complete() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Emits every foreign tensor, pulling the canonical ones from `full` one by one, in map.order().
void assemble(const TensorMap& map, std::optional<DType> dtype,
              const std::function<Tensor(const std::string& canonical)>& full, const Assembler::Emit& emit);

// A line of a layout table: a foreign tensor and the canonical tensors whose rows it holds. Lines whose
// canonical tensors a model lacks (no biases, tied output) are passed over.
struct LayoutRow {
  enum class Order {
    kStacked,   // one behind the other
    kPerGroup,  // q, k, v by query groups: the group's q heads, its k head, its v head
  };
  const char* foreign;
  bool transposed;
  Order order;
  const char* canonical[3];  // unused ones null
};
struct LayoutTable {
  const char* foreign_layer;  // "model.layers.{}.": the prefix of a layer's rows, {} its number
  std::span<const LayoutRow> before, layer, after;
  // Of a layer with experts: beside the layer's rows, and those of each expert, "experts.{}.", {} its number.
  std::span<const LayoutRow> mixture = {};
  const char* foreign_expert = "";
  std::span<const LayoutRow> expert = {};
};
TensorMap make_tensor_map(const ModelConfig& config, const LayoutTable& table);

}  // namespace weft
