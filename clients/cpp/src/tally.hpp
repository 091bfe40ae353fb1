// What happened, counted by any thread without a lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace farfield {

using Count = std::atomic<std::uint64_t>;

struct Tally {
  // client.hpp says what each is
  Count acted{0}, fallbacks{0}, episodes{0}, fragments{0}, steps{0}, credits{0}, sent{0}, owned{0}, refused{0};
  Count adopted{0}, dropped_fragments{0}, dropped_steps{0}, dropped_credits{0}, damaged_bytes{0};
  Count versions{0}, connects{0}, rubbish{0};
  std::atomic<bool> connected{false};
};

inline void add(Count& count, std::uint64_t more = 1) { count.fetch_add(more, std::memory_order_relaxed); }

}  // namespace farfield
