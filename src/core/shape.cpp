#include "core/shape.hpp"

#include "core/check.hpp"

namespace weft {

Shape::Shape(std::initializer_list<std::int64_t> dims) : Shape(dims.begin(), dims.end()) {}

void Shape::push_back(std::int64_t size) {
  WEFT_CHECK(rank_ < kMaxRank, "a shape has at most {} dimensions", kMaxRank);
  WEFT_CHECK(size >= 0, "negative dimension {}", size);
  dims_[static_cast<std::size_t>(rank_++)] = size;
}

std::int64_t Shape::elems() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<std::size_t>(i)];
  return n;
}

std::int64_t Shape::rows() const {
  std::int64_t n = 1;
  for (int i = 0; i + 1 < rank_; ++i) n *= dims_[static_cast<std::size_t>(i)];
  return n;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace weft
