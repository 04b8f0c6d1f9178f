// View: where a tensor's elements lie, without a share in its memory. A backend that works for several ranks
// holds views only: the handles stay with the rank that owns them, so that memory is freed in that rank's
// thread, at a point of its own program, and the addresses of a step never depend on timing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor.hpp"

namespace weft {

struct View {
  std::byte* data = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t ld = 0;  // elements from row to row

  View() = default;
  explicit View(const Tensor& t) : data(t.raw()), rows(t.rows()), columns(t.columns()), ld(t.ld()) {}

  std::int64_t elems() const { return rows * columns; }
  bool contiguous() const { return ld == columns || rows <= 1; }
};

// to = from, both of the same size; nothing when they are the same memory.
void copy_view(const View& to, const View& from, std::size_t element_bytes);

}  // namespace weft
