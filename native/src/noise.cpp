// A seed, a stream and the number of a decision in; the same noise out as experience/noise.py draws.
#include "farfield/noise.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "farfield/error.hpp"
#include "kernels.hpp"

namespace farfield {
namespace {

std::size_t words_of(const Block& block) {
  return block.first == Distribution::Normal ? block.second + block.second % 2 : block.second;
}

double uniform(std::uint64_t raw) { return (static_cast<double>(raw >> 12) + 0.5) * 0x1p-52; }

struct Wide {
  std::uint64_t high, low;
};

inline Wide multiply(std::uint64_t a, std::uint64_t b) {
#ifdef __SIZEOF_INT128__
  __extension__ typedef unsigned __int128 Product;
  const Product product = static_cast<Product>(a) * b;
  return {static_cast<std::uint64_t>(product >> 64), static_cast<std::uint64_t>(product)};
#else
  const std::uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const std::uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (middle & 0xffffffffu);
  return {a1 * b1 + (middle >> 32) + (other >> 32), a * b};
#endif
}

/// The 256-bit number n * times, as a counter.
std::array<std::uint64_t, 4> counter_of(std::uint64_t n, std::uint64_t times) {
  const Wide product = multiply(n, times);
  return {product.low, product.high, 0, 0};
}

}  // namespace

std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
  value = (value ^ value >> 27) * 0x94D049BB133111EBu;
  return value ^ value >> 31;
}

std::array<std::uint64_t, 2> noise_key(std::uint64_t seed, std::string_view stream) {
  std::uint64_t half[2] = {0, 0};
  bool good = stream.size() == 32;
  for (std::size_t i = 0; good && i < 32; ++i) {
    const char c = stream[i];
    good = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    half[i / 16] = half[i / 16] << 4 | static_cast<std::uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  if (!good) config_error("noise: stream must be 32 lower-case hexadecimal digits, got '" + std::string(stream) + "'");
  const std::uint64_t first = mix(mix(seed) ^ half[0]);
  return {first, mix(first ^ half[1])};
}

std::array<std::uint64_t, 4> philox(std::array<std::uint64_t, 4> x, std::array<std::uint64_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const Wide a = multiply(0xD2E7470EE14C6C93u, x[0]), b = multiply(0xCA5A826395121157u, x[2]);
    x = {b.high ^ x[1] ^ key[0], b.low, a.high ^ x[3] ^ key[1], a.low};
    key[0] += 0x9E3779B97F4A7C15u;
    key[1] += 0xBB67AE8584CAA73Bu;
  }
  return x;
}

std::vector<Block> noise_blocks(const Spec& spec, const Network& network) {
  std::vector<Block> blocks;
  for (const Head& head : network.heads) {
    const auto field = std::find_if(spec.actions.begin(), spec.actions.end(),
                                    [&](const Field& one) { return one.name == head.action; });
    if (field == spec.actions.end()) config_error("a head decides '" + head.action + "', which is no action");
    switch (head.kind) {
      case Head::Kind::Categorical: blocks.emplace_back(Distribution::Gumbel, field->choices()); break;
      case Head::Kind::Bernoulli: blocks.emplace_back(Distribution::Logistic, field->count()); break;
      case Head::Kind::Gaussian: blocks.emplace_back(Distribution::Normal, field->count()); break;
      case Head::Kind::Epsilon:
        blocks.emplace_back(Distribution::Gumbel, field->choices());
        blocks.emplace_back(Distribution::Uniform, 1);
    }
  }
  return blocks;
}

Distribution distribution_of(const std::string& name) {
  static const char* const NAMES[] = {"gumbel", "logistic", "uniform", "normal"};
  for (int i = 0; i < 4; ++i)
    if (name == NAMES[i]) return static_cast<Distribution>(i);
  config_error("noise: unknown distribution '" + name + "'; known: gumbel, logistic, normal, uniform");
}

Noise::Noise(std::vector<Block> blocks, std::uint64_t seed, std::string_view stream)
    : blocks_(std::move(blocks)), key_(noise_key(seed, stream)) {
  std::size_t used = 0;
  for (const Block& block : blocks_) {
    width_ += block.second;
    used += words_of(block);
  }
  words_ = (used + 3) / 4 * 4;
  raw_.resize(words_);
}

void Noise::draw(std::uint64_t first, std::size_t lanes, float* out) {
  if (!width_) return;
  const Kernels& kernels = best_kernels();
  for (std::size_t lane = 0; lane < lanes; ++lane, out += width_) {
    auto counter = counter_of(first + lane, words_ / 4);
    for (std::size_t i = 0; i < words_; i += 4) {
      const auto words = philox(counter, key_);
      std::memcpy(&raw_[i], words.data(), sizeof words);
      if (!++counter[0]) ++counter[1];
    }
    const std::uint64_t* raw = raw_.data();
    float* to = out;
    for (const Block& block : blocks_) {
      const std::size_t width = block.second;
      switch (block.first) {
        case Distribution::Gumbel: kernels.finish_gumbel(raw, to, width); break;
        case Distribution::Logistic: kernels.finish_logistic(raw, to, width); break;
        case Distribution::Uniform:  // must stay below one in 32 bits too
          for (std::size_t i = 0; i < width; ++i)
            to[i] = std::min(static_cast<float>(uniform(raw[i])), 1.0f - 0x1p-24f);
          break;
        case Distribution::Normal:
          for (std::size_t i = 0; i < width; i += 2) {
            const double radius = std::sqrt(-2.0 * std::log(uniform(raw[i])));
            const double angle = 2.0 * 3.141592653589793 * uniform(raw[i + 1]);
            to[i] = static_cast<float>(radius * std::cos(angle));
            if (i + 1 < width) to[i + 1] = static_cast<float>(radius * std::sin(angle));
          }
      }
      raw += words_of(block);
      to += width;
    }
  }
}

}  // namespace farfield
