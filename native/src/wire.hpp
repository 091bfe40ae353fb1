// What both sides of the encoding know: numbers of proto/farfield/v1.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farfield::wire {

constexpr std::uint64_t SCHEMA = 1;
enum Kind : std::uint64_t { FRAGMENT = 1, CREDIT = 2, ANNOUNCEMENT = 3 };
constexpr const char* KIND_NAMES[] = {"", "Fragment", "Credit", "Announcement", "Heartbeat", "Dead"};

}  // namespace farfield::wire
