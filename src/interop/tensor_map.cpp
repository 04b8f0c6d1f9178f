#include "interop/tensor_map.hpp"

#include <algorithm>
#include <utility>

#include "core/check.hpp"
#include "interop/copy.hpp"
#include "model/gpt_model.hpp"

namespace weft {
namespace {

constexpr const char* kCanonicalLayer = "decoder.layers.{}.";

// Throws unless the parts (begin, count) tile [0, size) exactly.
void check_tiling(std::vector<std::pair<std::int64_t, std::int64_t>> parts, std::int64_t size,
                  const char* kind, const std::string& name) {
  std::sort(parts.begin(), parts.end());
  std::int64_t position = 0;
  for (const auto& [begin, count] : parts) {
    WEFT_CHECK(begin == position, "{} tensor {}: parts leave or overlap at row {}", kind, name, position);
    position += count;
  }
  WEFT_CHECK(position == size, "{} tensor {}: parts cover {} of {} rows", kind, name, position, size);
}

std::int64_t rows_of(const ForeignTensor& tensor) {
  return tensor.shape[tensor.transposed ? -1 : 0];
}

}  // namespace

std::vector<CanonicalTensor> canonical_tensors(const ModelConfig& config) {
  std::vector<CanonicalTensor> list;
  for (const LogicalTensor& tensor :
       logical_tensors(local_spec(config), {true, 0, config.num_layers, true})) {
    list.push_back({tensor.name, tensor.global});
  }
  return list;
}

TensorMap::TensorMap(std::vector<CanonicalTensor> canonical, std::vector<ForeignTensor> foreign)
    : canonical_(std::move(canonical)), foreign_(std::move(foreign)) {
  constexpr std::size_t kNone = ~std::size_t{0};
  for (std::size_t i = 0; i < canonical_.size(); ++i) index_.emplace(canonical_[i].name, i);
  holder_.assign(canonical_.size(), kNone);
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> covered(canonical_.size());
  for (std::size_t i = 0; i < foreign_.size(); ++i) {
    std::vector<std::pair<std::int64_t, std::int64_t>> rows;
    for (const ForeignPart& part : foreign_[i].parts) {
      const std::size_t c = index_of(part.canonical);
      WEFT_CHECK(holder_[c] == kNone || holder_[c] == i, "canonical tensor {} is split", part.canonical);
      holder_[c] = i;
      covered[c].emplace_back(part.canonical_row, part.count);
      rows.emplace_back(part.foreign_row, part.count);
    }
    check_tiling(std::move(rows), rows_of(foreign_[i]), "foreign", foreign_[i].name);
  }
  for (std::size_t c = 0; c < canonical_.size(); ++c) {
    check_tiling(std::move(covered[c]), canonical_[c].shape[0], "canonical", canonical_[c].name);
  }
}

std::size_t TensorMap::index_of(const std::string& canonical) const {
  const auto found = index_.find(canonical);
  WEFT_CHECK(found != index_.end(), "the model has no tensor {}", canonical);
  return found->second;
}

const Shape& TensorMap::shape_of(const std::string& canonical) const {
  return canonical_[index_of(canonical)].shape;
}

const ForeignTensor& TensorMap::holder_of(const std::string& canonical) const {
  return foreign_[holder_[index_of(canonical)]];
}

std::vector<std::string> TensorMap::order() const {
  std::vector<std::string> names;
  for (const ForeignTensor& tensor : foreign_) {
    const std::size_t first = names.size();
    for (const ForeignPart& part : tensor.parts) {
      const auto begin = names.begin() + static_cast<std::ptrdiff_t>(first);
      if (std::find(begin, names.end(), part.canonical) == names.end()) names.push_back(part.canonical);
    }
  }
  return names;
}

void TensorMap::read(const Tensor& foreign, const std::string& canonical, const TensorRange& range,
                     const Tensor& destination) const {
  const ForeignTensor& holder = holder_of(canonical);
  expect_shape(foreign, holder.shape, holder.name.c_str());
  Shape wanted = shape_of(canonical);
  if (range.dim >= 0) {
    WEFT_CHECK(range.dim < wanted.rank() && range.begin >= 0 && range.count >= 0 &&
                   range.begin + range.count <= wanted[range.dim],
               "{} {}: indices [{}, +{}) of dim {}", canonical, to_string(wanted), range.begin, range.count,
               range.dim);
    wanted.set(range.dim, range.count);
  }
  expect_shape(destination, wanted, canonical.c_str());
  const MatrixView to = matrix_view(destination);
  MatrixView from = matrix_view(foreign, holder.transposed);
  if (range.dim == 1) from = from.column_range(range.begin, range.count);
  const std::int64_t begin = range.dim == 0 ? range.begin : 0;
  for (const ForeignPart& part : holder.parts) {
    if (part.canonical != canonical) continue;
    const std::int64_t first = std::max(part.canonical_row, begin);
    const std::int64_t last = std::min(part.canonical_row + part.count, begin + to.rows);
    if (first >= last) continue;
    copy_matrix(from.row_range(part.foreign_row + first - part.canonical_row, last - first),
                to.row_range(first - begin, last - first));
  }
}

struct Assembler::State {
  const TensorMap& map;
  std::optional<DType> dtype;
  Emit emit;
  std::vector<std::string> order;
  std::size_t next = 0;                // in order
  std::vector<std::uint64_t> storage;  // of the foreign tensor being put together
  Tensor tensor;                       // view of it; undefined between tensors
};

Assembler::Assembler(const TensorMap& map, std::optional<DType> dtype, Emit emit)
    : state_(new State{map, dtype, std::move(emit), map.order(), 0, {}, {}}) {}
Assembler::~Assembler() = default;

void Assembler::add(const std::string& canonical, const Tensor& full) {
  State& s = *state_;
  WEFT_CHECK(s.next < s.order.size() && s.order[s.next] == canonical, "{} supplied, expected {}", canonical,
             s.next < s.order.size() ? s.order[s.next] : "no more");
  expect_shape(full, s.map.shape_of(canonical), canonical.c_str());
  const ForeignTensor& holder = s.map.holder_of(canonical);
  ++s.next;
  const bool last = s.next == s.order.size() || &s.map.holder_of(s.order[s.next]) != &holder;
  const DType dtype = s.dtype.value_or(full.dtype());
  if (holder.parts.size() == 1 && !holder.transposed && full.dtype() == dtype && full.contiguous()) {
    s.emit(holder, full);
    return;
  }
  if (!s.tensor.defined()) {
    const std::size_t bytes = static_cast<std::size_t>(holder.shape.elems()) * bytes_of(dtype);
    s.storage.resize((bytes + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
    s.tensor = Tensor::borrow(s.storage.data(), dtype, holder.shape);
  }
  const MatrixView from = matrix_view(full), to = matrix_view(s.tensor, holder.transposed);
  for (const ForeignPart& part : holder.parts) {
    if (part.canonical != canonical) continue;
    copy_matrix(from.row_range(part.canonical_row, part.count), to.row_range(part.foreign_row, part.count));
  }
  if (!last) return;
  s.emit(holder, s.tensor);
  s.tensor = {};
}

bool Assembler::complete() const {
  return state_->next == state_->order.size();
}

void assemble(const TensorMap& map, std::optional<DType> dtype,
              const std::function<Tensor(const std::string&)>& full, const Assembler::Emit& emit) {
  Assembler assembler(map, dtype, emit);
  for (const std::string& name : map.order()) assembler.add(name, full(name));
}

namespace {

class MapBuilder {
 public:
  explicit MapBuilder(const ModelConfig& config)
      : config_(resolved(config)), canonical_(canonical_tensors(config)) {
    for (const CanonicalTensor& tensor : canonical_) shapes_.emplace(tensor.name, tensor.shape);
  }

  void add(const LayoutRow& row, const std::string& foreign_prefix, const std::string& canonical_prefix) {
    std::vector<CanonicalTensor> members;
    std::size_t named = 0;
    for (const char* suffix : row.canonical) {
      if (suffix == nullptr) continue;
      ++named;
      const auto found = shapes_.find(canonical_prefix + suffix);
      if (found != shapes_.end()) members.push_back({found->first, found->second});
    }
    if (members.empty()) return;
    WEFT_CHECK(members.size() == named, "{}{}: some of its tensors are missing", foreign_prefix, row.foreign);
    ForeignTensor tensor{foreign_prefix + row.foreign, members[0].shape, row.transposed, {}};
    std::int64_t rows = 0;
    for (const CanonicalTensor& member : members) rows += member.shape[0];
    tensor.shape.set(0, rows);
    if (row.transposed) tensor.shape = Shape{tensor.shape[1], tensor.shape[0]};
    if (row.order == LayoutRow::Order::kPerGroup) {
      for (std::int64_t group = 0; group < config_.num_query_groups; ++group) {
        for (const CanonicalTensor& member : members) {
          const std::int64_t count = member.shape[0] / config_.num_query_groups;
          append(tensor, member.name, group * count, count);
        }
      }
    } else {
      for (const CanonicalTensor& member : members) append(tensor, member.name, 0, member.shape[0]);
    }
    foreign_.push_back(std::move(tensor));
  }

  TensorMap build() { return {std::move(canonical_), std::move(foreign_)}; }

 private:
  static void append(ForeignTensor& tensor, const std::string& canonical, std::int64_t row,
                     std::int64_t count) {
    const std::int64_t at =
        tensor.parts.empty() ? 0 : tensor.parts.back().foreign_row + tensor.parts.back().count;
    tensor.parts.push_back({canonical, row, at, count});
  }

  ModelConfig config_;
  std::vector<CanonicalTensor> canonical_;
  std::map<std::string, Shape> shapes_;
  std::vector<ForeignTensor> foreign_;
};

}  // namespace

TensorMap make_tensor_map(const ModelConfig& config, const LayoutTable& table) {
  MapBuilder builder(config);
  for (const LayoutRow& row : table.before) builder.add(row, "", "");
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const std::string foreign = fmt::format(fmt::runtime(table.foreign_layer), i);
    const std::string canonical = fmt::format(fmt::runtime(kCanonicalLayer), i);
    for (const LayoutRow& row : table.layer) builder.add(row, foreign, canonical);
    for (const LayoutRow& row : table.mixture) builder.add(row, foreign, canonical);
    if (table.expert.empty()) continue;
    for (std::int64_t e = 0; e < config.moe.num_experts; ++e) {
      for (const LayoutRow& row : table.expert) {
        builder.add(row, foreign + fmt::format(fmt::runtime(table.foreign_expert), e),
                    canonical + fmt::format("mlp.experts.{}.", e));
      }
    }
  }
  for (const LayoutRow& row : table.after) builder.add(row, "", "");
  return builder.build();
}

}  // namespace weft
