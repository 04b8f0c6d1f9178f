// Elementary functions without branches, so that loops over float vectorise. Polynomials are minimax fits
// (relative error below 2⁻²⁸ before rounding); results are within about 2 ulp. Doubles use the standard
// library.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "ops/cpu/support.hpp"

namespace weft::ops::cpu {

// condition ? a : b by masks: the compiler would turn a plain choice into a branch around the costlier side,
// and a loop with branches does not vectorise.
WEFT_ALWAYS_INLINE float select(bool condition, float a, float b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(a) & mask) |
                              (std::bit_cast<std::uint32_t>(b) & ~mask));
}

// 0 below −87.3 (where the result would be subnormal), infinity above 88.7; NaN stays NaN.
WEFT_ALWAYS_INLINE float exp_of(float x) {
  constexpr float kLow = -87.33654f, kHigh = 88.72283f;
  float clamped = x < kLow ? kLow : x;
  clamped = clamped > kHigh ? kHigh : clamped;
  const float n = std::nearbyint(clamped * std::numbers::log2e_v<float>);
  // x − n ln 2, with ln 2 in two parts: the first has few bits, so n times it is exact.
  float r = std::fma(n, -0.693359375f, clamped);
  r = std::fma(n, 2.12194440e-4f, r);
  float q = 1.39506022e-3f;
  q = std::fma(q, r, 8.36895352e-3f);
  q = std::fma(q, r, 4.16662041e-2f);
  q = std::fma(q, r, 1.66665183e-1f);
  q = std::fma(q, r, 5.00000010e-1f);
  const float p = std::fma(q * r, r, r) + 1.0f;
  // 2ⁿ in two factors: n reaches 128.
  const auto whole = static_cast<std::int32_t>(n);
  const std::int32_t half = whole >> 1;
  const float scale1 = std::bit_cast<float>((half + 127) << 23);
  const float scale2 = std::bit_cast<float>((whole - half + 127) << 23);
  const float y = p * scale1 * scale2;
  return select(x < kLow, 0.0f, select(x > kHigh, std::numeric_limits<float>::infinity(), y));
}
WEFT_ALWAYS_INLINE double exp_of(double x) {
  return std::exp(x);
}

WEFT_ALWAYS_INLINE float tanh_of(float x) {
  const float a = std::fabs(x);
  const float s = a * a;
  float q = -6.20743025e-3f;
  q = std::fma(q, s, 2.10272188e-2f);
  q = std::fma(q, s, -5.38422782e-2f);
  q = std::fma(q, s, 1.33324989e-1f);
  q = std::fma(q, s, -3.33333153e-1f);
  const float small = std::fma(q * s, a, a);
  const float large = 1.0f - 2.0f / (exp_of(2.0f * a) + 1.0f);
  return std::copysign(select(a < 0.55f, small, large), x);
}
WEFT_ALWAYS_INLINE double tanh_of(double x) {
  return std::tanh(x);
}

WEFT_ALWAYS_INLINE float erf_of(float x) {
  const float a = std::fabs(x);
  const float s = a * a;
  float q = 8.21545869e-5f;
  q = std::fma(q, s, -8.10597529e-4f);
  q = std::fma(q, s, 5.1977983e-3f);
  q = std::fma(q, s, -2.68581049e-2f);
  q = std::fma(q, s, 1.12836726e-1f);
  q = std::fma(q, s, -3.76126323e-1f);
  q = std::fma(q, s, 1.12837917f);
  const float small = q * a;
  // ln(1 − erf t) on [0.9, 4]; beyond, erf rounds to 1.
  const float t = a > 4.0f ? 4.0f : a;
  float g = 1.98219726e-4f;
  g = std::fma(g, t, -3.06549093e-3f);
  g = std::fma(g, t, 2.23152153e-2f);
  g = std::fma(g, t, -1.04113683e-1f);
  g = std::fma(g, t, -6.36976079e-1f);
  g = std::fma(g, t, -1.12779724f);
  g = std::fma(g, t, -1.66447161e-4f);
  const float large = 1.0f - exp_of(g);
  // `a` itself where it is NaN, which no comparison above lets through.
  return std::copysign(select(a != a, a, select(a < 0.9f, small, large)), x);
}
WEFT_ALWAYS_INLINE double erf_of(double x) {
  return std::erf(x);
}

template <class A>
WEFT_ALWAYS_INLINE A sigmoid_of(A x) {
  return A{1} / (A{1} + exp_of(-x));
}

}  // namespace weft::ops::cpu
