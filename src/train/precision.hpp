// Names of number formats, as options spell them.
#pragma once

#include <string>

#include "core/dtype.hpp"

namespace weft {

// "fp32", "bf16", "fp16" or "fp64"; a ConfigError that names --dtype for anything else.
DType parse_dtype(const std::string& text);

}  // namespace weft
