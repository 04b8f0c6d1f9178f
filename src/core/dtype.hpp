// Element types of tensors, and the two 16-bit floating-point formats the compiler does not know.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

enum class DType : std::uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32, kI16, kU16, kI8, kU8 };

std::size_t bytes_of(DType dtype);
// safetensors' spelling: F64 F32 BF16 F16 I64 I32 I16 U16 I8 U8.
std::string_view name_of(DType dtype);
bool is_floating(DType dtype);

// bfloat16: the upper half of a float; conversion rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    bits = static_cast<std::uint16_t>((nan ? (u | 0x00400000u) : rounded) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

// IEEE half precision, same rounding rules; overflow becomes infinity.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  explicit f16(float value) : bits(from_float(value)) {}
  explicit operator float() const { return to_float(bits); }

  static std::uint16_t from_float(float value);
  static float to_float(std::uint16_t bits);
};

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::kF64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::kBF16;
}
template <>
constexpr DType dtype_of<f16>() {
  return DType::kF16;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType dtype_of<std::int16_t>() {
  return DType::kI16;
}
template <>
constexpr DType dtype_of<std::uint16_t>() {
  return DType::kU16;
}
template <>
constexpr DType dtype_of<std::int8_t>() {
  return DType::kI8;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::kU8;
}

// The type that sums and moments of T are kept in: double for double, float for everything narrower.
template <class T>
struct accumulator {
  using type = float;
};
template <>
struct accumulator<double> {
  using type = double;
};
template <class T>
using accumulator_t = typename accumulator<T>::type;
// The same as a value: F64 -> F64, else F32. Main gradients and master weights have this type.
constexpr DType accumulator_of(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

}  // namespace weft
