// Which part of the model a pipeline stage holds.
#pragma once

#include <cstdint>

namespace weft {

struct StageRange {
  bool embedding = true;
  std::int64_t first_layer = 0, layers = 0;
  bool loss = true;
  bool operator==(const StageRange&) const = default;
};

}  // namespace weft
