// Tensor: a counted handle to a piece of an arena (or to memory owned elsewhere). No operations, no
// derivatives.
//
// A tensor is a matrix of rows() rows of length dim(-1), `ld` elements apart, with the rows grouped into at
// most three outer dimensions. So both a range of dim 0 (a piece of the sequence) and a range of the last dim
// (q inside packed qkv) are views, and every kernel needs only (pointer, rows, columns, ld), as BLAS does.
//
// When the last handle to a piece of an arena goes, the piece is free again: that is the whole story of
// activation lifetimes. Handles are not thread-safe, except that several threads may hold copies of const
// tensors.
#pragma once

#include <cstddef>
#include <span>

#include "core/check.hpp"
#include "core/device.hpp"
#include "core/dtype.hpp"
#include "core/shape.hpp"

namespace weft {

class Arena;

namespace detail {
struct Block;  // a piece of an arena; defined in arena.cpp
void retain(Block* block);
void release(Block* block);
}  // namespace detail

class Tensor {
 public:
  Tensor() = default;
  // Memory that outlives every handle and is owned by the caller (a mapped file, a std::vector, a pinned
  // buffer).
  static Tensor borrow(void* data, DType dtype, const Shape& shape, Device device = {});

  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor other) noexcept;
  ~Tensor();

  bool defined() const { return defined_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  std::int64_t dim(int i) const { return shape_[i]; }
  std::int64_t elems() const { return shape_.elems(); }
  std::int64_t rows() const { return shape_.rows(); }
  std::int64_t columns() const { return rank() == 0 ? 1 : shape_[-1]; }
  // Elements from the start of one row to the start of the next.
  std::int64_t ld() const { return ld_; }
  bool contiguous() const { return ld_ == columns() || rows() == 1; }
  std::size_t bytes() const { return static_cast<std::size_t>(elems()) * bytes_of(dtype_); }

  std::byte* raw() const { return data_; }
  template <class T>
  T* data() const {
    WEFT_CHECK(dtype_of<T>() == dtype_, "tensor of {} read as {}", name_of(dtype_), name_of(dtype_of<T>()));
    return reinterpret_cast<T*>(data_);
  }
  // The elements of a contiguous tensor.
  template <class T>
  std::span<T> values() const {
    WEFT_CHECK(contiguous(), "values() of a strided tensor {}", to_string(shape_));
    return {data<T>(), static_cast<std::size_t>(elems())};
  }

  // The same elements under another shape. Strided tensors keep their last dimension.
  Tensor view(const Shape& shape) const;
  // Indices [begin, begin + count) of dim 0.
  Tensor slice(std::int64_t begin, std::int64_t count) const;
  // Indices [begin, begin + count) of the last dim; shares ld.
  Tensor slice_columns(std::int64_t begin, std::int64_t count) const;

 private:
  friend class Arena;
  std::byte* data_ = nullptr;
  detail::Block* block_ = nullptr;
  Shape shape_;
  std::int64_t ld_ = 0;
  DType dtype_ = DType::kF32;
  Device device_;
  bool defined_ = false;
};

// Throws unless x has this shape; `what` names the tensor in the message.
void expect_shape(const Tensor& x, const Shape& shape, const char* what);

}  // namespace weft
