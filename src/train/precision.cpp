#include "train/precision.hpp"

#include "core/check.hpp"

namespace weft {

DType parse_dtype(const std::string& text) {
  if (text == "fp32") return DType::kF32;
  if (text == "bf16") return DType::kBF16;
  if (text == "fp16") return DType::kF16;
  if (text == "fp64") return DType::kF64;
  config_fail("--dtype {}: expected fp32, bf16, fp16 or fp64", text);
}

}  // namespace weft
