// Values of heads and noise in, actions out; values and actions in, log-probabilities out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "farfield/program.hpp"
#include "farfield/spec.hpp"

namespace farfield {

/// How all actions of a spec are decided from a row of values (the outputs of a Program, one lane).
class Heads {
 public:
  Heads() = default;
  /// ConfigError where a head reads what is not there, or an action has no head.
  Heads(const Spec& spec, const Network& network, const std::vector<Program::Output>& outputs);

  std::size_t noise() const { return noise_; }  // numbers that one decision takes
  /// Writes each action (in the spec's order) of one lane; without noise, greedily.
  void choose(const float* values, const float* noise, std::uint8_t* const* actions) const;
  /// Scores the actions of one lane under its values.
  float log_prob(const float* values, const std::uint8_t* const* actions) const;
  /// For advice: the log-probability of each choice of the first discrete action, or its values where it has an
  /// epsilon head; empty when the first action is not discrete.
  std::vector<float> scores(const float* values) const;

 private:
  struct One {
    Head::Kind kind;
    Dtype dtype;
    std::size_t action, count;         // which action of the spec, its elements
    std::size_t first, second, width;  // where its inputs stand in a row of values; elements of the first
    std::size_t noise;                 // where its noise begins
    bool spread;                       // gaussian, epsilon: the second input has an element for each of the first
    std::vector<std::int64_t> sizes;
  };
  std::vector<One> heads_;
  std::size_t noise_ = 0;
};

/// Reads element i of an array as an integer.
std::int64_t load_integer(Dtype dtype, const std::uint8_t* data, std::size_t i);
/// Writes an integer into element i of an array.
void store_integer(Dtype dtype, std::uint8_t* data, std::size_t i, std::int64_t value);

}  // namespace farfield
