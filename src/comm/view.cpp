#include "comm/view.hpp"

#include <cstring>

namespace weft {

void copy_view(const View& to, const View& from, std::size_t element_bytes) {
  if (to.elems() == 0 || (to.data == from.data && to.ld == from.ld)) return;
  if (to.contiguous() && from.contiguous()) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(to.elems()) * element_bytes);
    return;
  }
  const std::size_t row_bytes = static_cast<std::size_t>(to.columns) * element_bytes;
  for (std::int64_t row = 0; row < to.rows; ++row) {
    std::memcpy(to.data + static_cast<std::size_t>(row * to.ld) * element_bytes,
                from.data + static_cast<std::size_t>(row * from.ld) * element_bytes, row_bytes);
  }
}

}  // namespace weft
