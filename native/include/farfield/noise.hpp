// A seed, a stream and the number of a decision in; the same noise out as experience/noise.py draws.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farfield/spec.hpp"

namespace farfield {

enum class Distribution { Gumbel, Logistic, Uniform, Normal };
using Block = std::pair<Distribution, std::size_t>;  // with its width

/// Scatters 64 bits over 64 bits, one to one (SplitMix64's step and finaliser).
std::uint64_t mix(std::uint64_t value);
/// The two key words of a stream's noise; `stream` is 32 lower-case hexadecimal digits, else ConfigError.
std::array<std::uint64_t, 2> noise_key(std::uint64_t seed, std::string_view stream);
/// Ten rounds of Philox4x64 on one counter block.
std::array<std::uint64_t, 4> philox(std::array<std::uint64_t, 4> counter, std::array<std::uint64_t, 2> key);
/// Which noise one decision of one lane takes, in the order of the heads.
std::vector<Block> noise_blocks(const Spec& spec, const Network& network);
/// The distribution of that name; ConfigError where there is none.
Distribution distribution_of(const std::string& name);

/// The noise of one stream for one kind of decision. Not thread-safe: it has a buffer.
class Noise {
 public:
  Noise() = default;
  Noise(std::vector<Block> blocks, std::uint64_t seed, std::string_view stream);

  /// Numbers of one decision of one lane.
  std::size_t width() const { return width_; }
  /// Draws the noise [lanes, width] of decisions first, first + 1, …
  void draw(std::uint64_t first, std::size_t lanes, float* out);

 private:
  std::vector<Block> blocks_;
  std::array<std::uint64_t, 2> key_{};
  std::size_t width_ = 0, words_ = 0;  // of one decision; words are a multiple of four
  std::vector<std::uint64_t> raw_;
};

}  // namespace farfield
