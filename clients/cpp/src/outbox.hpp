// Finished payloads in, what to send next out; knows what waits, what is on its way and what is owned.
//
// A payload first waits in memory, is then written to the spool (or stays in memory where that takes nothing), is sent,
// and leaves once it is owned. What was sent when a connection broke is sent again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "spool.hpp"
#include "tally.hpp"

namespace farfield {

class Outbox {
 public:
  struct Left {
    std::uint64_t payloads = 0, bytes = 0;
    std::uint64_t in_memory = 0;  // of the payloads: gone when the process ends
    std::uint64_t spooled = 0;    // of the bytes
  };

  Outbox(std::string folder, std::uint64_t quota, std::size_t memory, Tally& tally);

  // Takes a payload, or counts it as dropped. Any thread; never waits for a disk or a network.
  bool push(std::string payload, std::uint64_t steps);
  // Drops what is pushed from now on.
  void shut();
  // Writes to disk what came; says whether anything did.
  bool store();
  // Takes over what dead processes left.
  void adopt();

  // Fills `batch` with payloads to send next, up to about `most` bytes, while no more than `quota` are on their way.
  bool take(std::vector<std::string>& batch, std::uint64_t most, std::uint64_t quota, std::uint64_t limit);
  // A connection broke: what was on its way is to be sent again.
  void rewind();
  // So many payloads of this connection are owned or refused.
  void own(std::uint64_t total);
  // The payload of this index (counted from 0 since the connection was opened) is refused for ever.
  void refuse(std::uint64_t index);

  Left left();
  std::uint64_t on_the_way();  // payloads sent and not owned
  std::uint64_t memory() const { return memory_.load(); }
  // Gives back what is left in memory, and closes the spool.
  void close();

  // Called after something came, or was owned.
  std::function<void()> changed = [] {};
  // Called with a stream in which a fragment is missing for ever; perhaps while the outbox is locked.
  std::function<void(const std::string&)> lost = [](const std::string&) {};

 private:
  struct Item {
    std::string payload;
    std::uint64_t steps = 0;
  };
  struct Flight {
    Spool::Origin origin;  // without a segment: it is in memory
    Item item;             // in memory, or empty
    std::uint64_t bytes = 0;
    std::string stream;    // of a fragment
    bool skipped = false;  // too large to be sent
    bool refused = false;
  };

  bool keep(Item& item);
  bool drop(const Item& item);
  bool take_one(Flight& flight, std::string& payload, std::uint64_t room);
  void land(Flight& flight);
  void own_skipped();
  void note_spool();

  Tally& tally_;
  const std::size_t bound_;  // bytes of memory
  std::atomic<std::size_t> memory_{0};
  std::atomic<bool> shut_{false};

  std::mutex gate_;  // guards what came and was not looked at; held for moments only
  std::deque<Item> fresh_;

  std::mutex mutex_;  // guards all that follows; held while the disk is written
  Spool spool_;
  std::deque<Item> held_;  // that the disk does not take
  std::deque<Flight> flight_;
  std::uint64_t landed_ = 0;  // payloads of this connection that are owned or refused
  std::uint64_t bytes_on_the_way_ = 0;
};

}  // namespace farfield
