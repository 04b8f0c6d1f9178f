// Copies of matrices between any two floating types and any two orders of the elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor.hpp"

namespace weft {

// Element (r, c) is at data + r · row_stride + c · column_stride, in elements.
struct MatrixView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t row_stride = 0, column_stride = 0;

  MatrixView row_range(std::int64_t begin, std::int64_t count) const;
  MatrixView column_range(std::int64_t begin, std::int64_t count) const;
};

// A host tensor of one or two dimensions; a vector [n] is n rows of one column. `transposed` swaps rows and
// columns.
MatrixView matrix_view(const Tensor& tensor, bool transposed = false);

// to = from. The views have equal sizes and do not overlap. Equal types are copied bit by bit; else each
// element is rounded to nearest, through float where a 16-bit type takes part.
void copy_matrix(const MatrixView& from, const MatrixView& to);
// Sets every element to zero.
void clear_matrix(const MatrixView& to);

}  // namespace weft
