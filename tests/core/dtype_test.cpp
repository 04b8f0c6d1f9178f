#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(bf16(1.0F).bits, 0x3F80);
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3F808000U)).bits, 0x3F80);  // half way: to the even one
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3F818000U)).bits, 0x3F82);
  EXPECT_EQ(bf16(std::bit_cast<float>(0x3F808001U)).bits, 0x3F81);
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7F80);  // overflows
  EXPECT_EQ(bf16(-kInf).bits, 0xFF80);
  // A NaN stays one, even where all its set bits are cut off.
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7F800001U)))));
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    bf16 x;
    x.bits = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(x);
    if (!std::isnan(value)) {
      EXPECT_EQ(bf16(value).bits, x.bits);
    }
  }
}

TEST(Half, RoundsToNearestEvenAndKeepsSubnormals) {
  EXPECT_EQ(f16(1.0F).bits, 0x3C00);
  EXPECT_EQ(f16(1.0F + 0x1p-11F).bits, 0x3C00);
  EXPECT_EQ(f16(1.0F + 0x3p-11F).bits, 0x3C02);
  EXPECT_EQ(f16(65504.0F).bits, 0x7BFF);
  EXPECT_EQ(f16(65519.9F).bits, 0x7BFF);
  EXPECT_EQ(f16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(f16(0x1p-24F).bits, 1);
  EXPECT_EQ(f16(0x1p-25F).bits, 0);
  EXPECT_EQ(f16(0x1.8p-25F).bits, 1);
  EXPECT_EQ(f16(-0.0F).bits, 0x8000);
  EXPECT_TRUE(std::isnan(static_cast<float>(f16(std::bit_cast<float>(0x7F800001U)))));
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    f16 x;
    x.bits = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(x);
    if (std::isnan(value)) continue;
    EXPECT_EQ(f16(value).bits, x.bits);
    if (const int exponent = static_cast<int>(bits >> 10 & 31); exponent == 31) {
      EXPECT_TRUE(std::isinf(value));
    } else {
      const auto fraction = static_cast<float>(bits & 1023);
      const float size = exponent == 0 ? fraction * 0x1p-24F : std::ldexp(1024 + fraction, exponent - 25);
      EXPECT_EQ(value, (bits & 0x8000) != 0 ? -size : size);
    }
  }
}

TEST(DTypes, SizesAndNames) {
  EXPECT_EQ(bytes_of(DType::kF64), 8U);
  EXPECT_EQ(bytes_of(DType::kBF16), 2U);
  EXPECT_EQ(bytes_of(DType::kU8), 1U);
  EXPECT_NE(name_of(DType::kBF16), name_of(DType::kF16));
  EXPECT_TRUE(is_floating(DType::kF16));
  EXPECT_FALSE(is_floating(DType::kI32));
  EXPECT_EQ(accumulator_of(DType::kBF16), DType::kF32);
  EXPECT_EQ(accumulator_of(DType::kF64), DType::kF64);
}

}  // namespace
}  // namespace weft
