// Nothing in, numbers and names that nobody else draws out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

namespace farfield {

// So many random hexadecimal digits, from the system's source.
inline std::string random_digits(std::size_t count) {
  std::random_device source;
  std::string digits;
  while (digits.size() < count) {
    for (std::uint32_t bits = source(), i = 0; i < 8 && digits.size() < count; ++i, bits >>= 4) {
      digits += "0123456789abcdef"[bits & 15U];
    }
  }
  return digits;
}

// A small generator for actions that no policy decides: a few nanoseconds, no memory of its own beyond eight bytes.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
    return value ^ (value >> 31);
  }
  // One of 0 … count - 1.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(next() % count); }
  // From 0 up to, and without, 1.
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace farfield
