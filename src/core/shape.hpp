// Shape: at most four dimensions, row-major.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace weft {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims);
  template <class Iterator>
  Shape(Iterator first, Iterator last) {
    for (; first != last; ++first) push_back(*first);
  }

  int rank() const { return rank_; }
  // Negative indices count from the end, as in shape[-1].
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i < 0 ? i + rank_ : i)]; }
  void set(int i, std::int64_t size) { dims_[static_cast<std::size_t>(i < 0 ? i + rank_ : i)] = size; }
  void push_back(std::int64_t size);
  std::int64_t elems() const;
  // Product of all dimensions but the last (1 for rank 0 and 1).
  std::int64_t rows() const;
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// "[8, 2, 64]"
std::string to_string(const Shape& shape);

}  // namespace weft
