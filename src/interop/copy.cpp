#include "interop/copy.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/check.hpp"

namespace weft {
namespace {

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, bf16> || std::is_same_v<From, f16>) {
    return static_cast<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bf16> || std::is_same_v<To, f16>) {
    return To(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class From, class To>
void copy_elements(const MatrixView& from, const MatrixView& to) {
  const auto* source = reinterpret_cast<const From*>(from.data);
  auto* destination = reinterpret_cast<To*>(to.data);
  // Tiles keep both sides in cache when one of them is walked across its rows.
  constexpr std::int64_t kTile = 64;
  for (std::int64_t r0 = 0; r0 < to.rows; r0 += kTile) {
    const std::int64_t r1 = std::min(r0 + kTile, to.rows);
    for (std::int64_t c0 = 0; c0 < to.columns; c0 += kTile) {
      const std::int64_t c1 = std::min(c0 + kTile, to.columns);
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          destination[r * to.row_stride + c * to.column_stride] =
              converted<To>(source[r * from.row_stride + c * from.column_stride]);
        }
      }
    }
  }
}

template <class Body>
void with_floating_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF64:
      return body(double{});
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(bf16{});
    case DType::kF16:
      return body(f16{});
    default:
      WEFT_CHECK(false, "copy_matrix: {} is no floating type", name_of(dtype));
  }
}

MatrixView flipped(MatrixView view) {
  std::swap(view.rows, view.columns);
  std::swap(view.row_stride, view.column_stride);
  return view;
}

}  // namespace

MatrixView MatrixView::row_range(std::int64_t begin, std::int64_t count) const {
  WEFT_CHECK(begin >= 0 && count >= 0 && begin + count <= rows, "rows [{}, +{}) of {}", begin, count, rows);
  MatrixView part = *this;
  part.data += begin * row_stride * static_cast<std::int64_t>(bytes_of(dtype));
  part.rows = count;
  return part;
}

MatrixView MatrixView::column_range(std::int64_t begin, std::int64_t count) const {
  return flipped(flipped(*this).row_range(begin, count));
}

MatrixView matrix_view(const Tensor& tensor, bool transposed) {
  WEFT_CHECK(tensor.device().kind == DeviceKind::kCpu, "matrix_view: a tensor on {}",
             name_of(tensor.device().kind));
  WEFT_CHECK(tensor.rank() == 1 || tensor.rank() == 2, "matrix_view: a tensor of shape {}",
             to_string(tensor.shape()));
  MatrixView view{tensor.raw(), tensor.dtype(), tensor.dim(0), 1, 1, 1};
  if (tensor.rank() == 2) {
    view.columns = tensor.dim(1);
    view.row_stride = tensor.ld();
  }
  return transposed ? flipped(view) : view;
}

void copy_matrix(const MatrixView& source, const MatrixView& destination) {
  MatrixView from = source, to = destination;
  WEFT_CHECK(from.rows == to.rows && from.columns == to.columns, "copy of [{}, {}] to [{}, {}]", from.rows,
             from.columns, to.rows, to.columns);
  if (to.rows == 0 || to.columns == 0) return;
  // Rows should be the direction in which the destination's elements lie side by side.
  if (to.column_stride != 1 || to.columns == 1) {
    from = flipped(from);
    to = flipped(to);
  }
  if (from.dtype == to.dtype && from.column_stride == 1 && to.column_stride == 1) {
    const std::size_t element = bytes_of(to.dtype);
    for (std::int64_t r = 0; r < to.rows; ++r) {
      std::memcpy(to.data + r * to.row_stride * static_cast<std::int64_t>(element),
                  from.data + r * from.row_stride * static_cast<std::int64_t>(element),
                  static_cast<std::size_t>(to.columns) * element);
    }
    return;
  }
  with_floating_type(from.dtype, [&]<class From>(From) {
    with_floating_type(to.dtype, [&]<class To>(To) { copy_elements<From, To>(from, to); });
  });
}

void clear_matrix(const MatrixView& to) {
  with_floating_type(to.dtype, [&]<class T>(T zero) {
    for (std::int64_t r = 0; r < to.rows; ++r) {
      for (std::int64_t c = 0; c < to.columns; ++c) {
        reinterpret_cast<T*>(to.data)[r * to.row_stride + c * to.column_stride] = zero;
      }
    }
  });
}

}  // namespace weft
