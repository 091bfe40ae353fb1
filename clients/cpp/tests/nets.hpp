// A number in; a small policy with that version, and the announcements that carry it, out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "farfield/client.hpp"
#include "farfield/json.hpp"

namespace farfield::testing {

// Of 8 observations and 4 actions; as the lander's.
Spec lander_spec();
// The same with a mask over the actions.
Spec masked_spec();

struct Net {
  std::string version_json;
  Columns tensors;
};

// Two hidden layers of `width`. `favourite` from 0 on: that action, whatever is seen.
Net make_net(std::uint64_t number, std::size_t width = 64, int favourite = -1, const Spec& spec = lander_spec());
// `only` empty: all tensors and `full`; otherwise those whose names begin with it.
std::string announce(const Net& net, const std::string& only = "");

}  // namespace farfield::testing
