// A spec and what is declared in; actions without any policy out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "farfield/client.hpp"
#include "random.hpp"

namespace farfield {

// Decides for one episode; not thread-safe.
class Chooser {
 public:
  // ConfigError where the declared action does not fit the spec.
  Chooser(const Spec& spec, const Fallback& fallback, std::size_t lanes, std::uint64_t seed);

  // Writes actions [lanes, …], one buffer for each action field; `observations` as Track::act takes them.
  void choose(const View* observations, void* const* actions);

 private:
  struct Part {  // of an action field: one choice among a few, or one number
    std::size_t field = 0, index = 0;
    std::size_t choices = 0;  // 0: a number
    double low = 0.0, high = 0.0;
    int mask = -1;           // which observation says what is allowed
    std::size_t offset = 0;  // of its choices there
  };
  void choose(const Part& part, std::size_t which, const View* observations, std::size_t lane, void* out);

  const Spec& spec_;
  std::vector<double> given_;
  std::size_t lanes_;
  Dice dice_;
  std::vector<Part> parts_;
  std::vector<std::size_t> mask_sizes_;  // of each observation field that is a mask, for one lane
};

// Checks what is declared against the spec, as `connect` does.
void check(const Spec& spec, const Fallback& fallback);

}  // namespace farfield
