// What happened, counted by any thread without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace farfield {

using Count = std::atomic<std::uint64_t>;

struct Tally {
  Count acted{0};      // decisions, all lanes counted
  Count fallbacks{0};  // of them, those that no policy decided
  Count episodes{0};   // that ended
  Count fragments{0};  // finished
  Count steps{0};      // in them
  Count credits{0};    // that were handed to the gateway rather than added here
  Count sent{0};       // payloads, again each time they are sent again
  Count acked{0};      // payloads that are owned
  Count acked_bytes{0};
  Count refused{0};    // payloads that the gateway will never take
  Count spooled{0};    // payloads written to disk
  Count adopted{0};    // payloads of dead processes that were found on disk
  Count dropped{0};    // payloads for which there was no room
  Count dropped_steps{0};
  Count damaged{0};    // files that ended in a torn frame
  Count lost_bytes{0};  // behind torn frames
  Count settled{0};    // fragments that the learner used or counted as not used
  Count versions{0};   // that came
  Count connects{0};   // times that the gateway let us in
  Count rubbish{0};    // answers that made no sense
  std::atomic<bool> connected{false};
};

inline void add(Count& count, std::uint64_t more = 1) { count.fetch_add(more, std::memory_order_relaxed); }

}  // namespace farfield
