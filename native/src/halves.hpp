// Numbers of 16 bits into those of 32, and back, rounded to the nearest.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace farfield {

inline float from_half(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31, exponent = bits >> 10 & 31u, fraction = bits & 1023u;
  if (!exponent) return (sign ? -1.0f : 1.0f) * static_cast<float>(fraction) * 0x1p-24f;
  const std::uint32_t word = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

inline std::uint16_t to_half(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(size)) return sign | 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < 0x1p-14f)
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(size * 0x1p24f)));
  int exponent;
  const float fraction = std::frexp(size, &exponent);                                             // in [0.5, 1)
  const std::uint32_t mantissa = static_cast<std::uint32_t>(std::nearbyint(fraction * 2048.0f));  // may carry over
  return static_cast<std::uint16_t>(sign + (std::uint32_t(exponent + 13) << 10) + mantissa);
}

}  // namespace farfield
