#include "core/tensor.hpp"

#include <utility>

namespace weft {

Tensor Tensor::borrow(void* data, DType dtype, const Shape& shape, Device device) {
  Tensor t;
  t.data_ = static_cast<std::byte*>(data);
  t.shape_ = shape;
  t.ld_ = t.columns();
  t.dtype_ = dtype;
  t.device_ = device;
  t.defined_ = true;
  return t;
}

Tensor::Tensor(const Tensor& other)
    : data_(other.data_),
      block_(other.block_),
      shape_(other.shape_),
      ld_(other.ld_),
      dtype_(other.dtype_),
      device_(other.device_),
      defined_(other.defined_) {
  if (block_ != nullptr) detail::retain(block_);
}

Tensor::Tensor(Tensor&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      block_(std::exchange(other.block_, nullptr)),
      shape_(other.shape_),
      ld_(other.ld_),
      dtype_(other.dtype_),
      device_(other.device_),
      defined_(std::exchange(other.defined_, false)) {}

Tensor& Tensor::operator=(Tensor other) noexcept {
  std::swap(data_, other.data_);
  std::swap(block_, other.block_);
  shape_ = other.shape_;
  ld_ = other.ld_;
  dtype_ = other.dtype_;
  device_ = other.device_;
  defined_ = other.defined_;
  return *this;
}

Tensor::~Tensor() {
  if (block_ != nullptr) detail::release(block_);
}

Tensor Tensor::view(const Shape& shape) const {
  WEFT_CHECK(shape.elems() == elems(), "view of {} as {}", to_string(shape_), to_string(shape));
  WEFT_CHECK(contiguous() || (shape.rank() > 0 && shape[-1] == columns()), "view of a strided {} as {}",
             to_string(shape_), to_string(shape));
  Tensor t = *this;
  t.shape_ = shape;
  if (contiguous()) t.ld_ = t.columns();
  return t;
}

Tensor Tensor::slice(std::int64_t begin, std::int64_t count) const {
  WEFT_CHECK(rank() > 0 && begin >= 0 && count >= 0 && begin + count <= dim(0), "slice [{}, {}) of {}", begin,
             begin + count, to_string(shape_));
  Tensor t = *this;
  t.shape_.set(0, count);
  std::int64_t stride = 1;  // elements between indices of dim 0
  if (rank() > 1) {
    stride = ld_;
    for (int i = 1; i + 1 < rank(); ++i) stride *= dim(i);
  } else {
    t.ld_ = count;
  }
  t.data_ += begin * stride * static_cast<std::int64_t>(bytes_of(dtype_));
  return t;
}

Tensor Tensor::slice_columns(std::int64_t begin, std::int64_t count) const {
  WEFT_CHECK(rank() > 0 && begin >= 0 && count >= 0 && begin + count <= columns(), "columns [{}, {}) of {}",
             begin, begin + count, to_string(shape_));
  Tensor t = *this;
  t.shape_.set(-1, count);
  t.data_ += begin * static_cast<std::int64_t>(bytes_of(dtype_));
  return t;
}

void expect_shape(const Tensor& x, const Shape& shape, const char* what) {
  WEFT_CHECK(x.defined() && x.shape() == shape, "{} has shape {}, expected {}", what,
             x.defined() ? to_string(x.shape()) : "(undefined)", to_string(shape));
}

}  // namespace weft
