#include "outbox.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "farfield/sha256.hpp"

namespace farfield {

namespace {

// The stream of an encoded fragment, in hexadecimal digits; nothing where it is something else. Behind the head
// (length, schema, kind: nine bytes) come the run and then the stream, each with a tag and a length.
std::string stream_of(const std::string& payload) {
  constexpr std::size_t kHead = 9;
  constexpr char kFragment = 1;
  if (payload.size() < kHead + 2 || payload[kHead - 1] != kFragment || payload[kHead] != 0x22) return "";
  const std::size_t at = kHead + 2 + static_cast<unsigned char>(payload[kHead + 1]);
  if (payload.size() < at + 18 || payload[at] != 0x2A || payload[at + 1] != 16) return "";
  return hex(payload.data() + at + 2, 16);
}

}  // namespace

Outbox::Outbox(std::string folder, std::uint64_t quota, std::size_t memory, Tally& tally)
    : tally_(tally), bound_(memory), spool_(std::move(folder), quota) {}

bool Outbox::push(std::string payload, std::uint64_t steps) {
  Item item{std::move(payload), steps};
  const std::size_t size = item.payload.size();
  if (shut_.load()) return drop(item);
  if (memory_.fetch_add(size) + size > bound_) {
    memory_.fetch_sub(size);
    return drop(item);
  }
  {
    const std::lock_guard hold(gate_);
    fresh_.push_back(std::move(item));
  }
  changed();
  return true;
}

void Outbox::shut() { shut_.store(true); }

bool Outbox::store() {
  const std::lock_guard hold(mutex_);
  bool came = false;
  while (!held_.empty() && keep(held_.front())) held_.pop_front();
  while (true) {
    Item item;
    {
      const std::lock_guard brief(gate_);
      if (fresh_.empty()) break;
      item = std::move(fresh_.front());
      fresh_.pop_front();
    }
    came = true;
    if (!keep(item)) held_.push_back(std::move(item));
  }
  return came;
}

// Writes to disk; false where it must stay in memory.
bool Outbox::keep(Item& item) {
  switch (spool_.write(item.payload)) {
    case Spool::Kept::kYes: break;
    case Spool::Kept::kQuota: drop(item); break;
    case Spool::Kept::kNoRoom:
    case Spool::Kept::kOff: return false;
  }
  memory_.fetch_sub(item.payload.size());
  return true;
}

// There is no room: counted, and false.
bool Outbox::drop(const Item& item) {
  const std::string stream = stream_of(item.payload);
  add(stream.empty() ? tally_.dropped_credits : tally_.dropped_fragments);
  add(tally_.dropped_steps, item.steps);
  if (!stream.empty()) lost(stream);
  return false;
}

void Outbox::adopt() {
  const std::lock_guard hold(mutex_);
  const std::uint64_t before = spool_.frames();
  if (spool_.adopt() > 0) add(tally_.adopted, spool_.frames() - before);
  note_spool();
}

bool Outbox::take(std::vector<std::string>& batch, std::uint64_t most, std::uint64_t quota, std::uint64_t limit) {
  const std::lock_guard hold(mutex_);
  std::uint64_t bytes = 0;
  while (bytes < most) {
    Flight flight;
    std::string payload;
    std::uint64_t room = quota > bytes_on_the_way_ ? quota - bytes_on_the_way_ : 0;
    if (bytes_on_the_way_ == 0) room = std::numeric_limits<std::uint64_t>::max();  // one goes, whatever its size
    if (!batch.empty()) room = std::min(room, most - bytes);
    if (!take_one(flight, payload, room)) break;
    flight.skipped = flight.bytes > limit;
    flight.stream = stream_of(payload);
    if (!flight.skipped) {
      bytes += flight.bytes;
      bytes_on_the_way_ += flight.bytes;
      add(tally_.sent);
      batch.push_back(std::move(payload));
    }
    flight_.push_back(std::move(flight));
  }
  own_skipped();
  note_spool();
  return !batch.empty();
}

// One payload from disk or, where the disk has none, from memory.
bool Outbox::take_one(Flight& flight, std::string& payload, std::uint64_t room) {
  if (const std::uint32_t size = spool_.peek(); size > room) return false;
  if (spool_.next(payload, flight.origin)) {
    flight.bytes = payload.size();
    return true;
  }
  if (held_.empty() || held_.front().payload.size() > room) return false;
  flight.item = std::move(held_.front());
  held_.pop_front();
  payload = flight.item.payload;
  flight.bytes = payload.size();
  return true;
}

void Outbox::rewind() {
  const std::lock_guard hold(mutex_);
  while (!flight_.empty()) {
    if (!flight_.back().origin.segment) held_.push_front(std::move(flight_.back().item));
    flight_.pop_back();
  }
  spool_.rewind();
  landed_ = 0;
  bytes_on_the_way_ = 0;
}

void Outbox::own(std::uint64_t total) {
  {
    const std::lock_guard hold(mutex_);
    while (landed_ < total && !flight_.empty()) {
      if (!flight_.front().skipped) ++landed_;
      land(flight_.front());
      flight_.pop_front();
    }
    own_skipped();
  }
  changed();
}

void Outbox::own_skipped() {
  while (!flight_.empty() && flight_.front().skipped) {
    land(flight_.front());
    flight_.pop_front();
  }
}

void Outbox::land(Flight& flight) {
  if (flight.skipped || flight.refused) {
    add(tally_.refused);
    if (!flight.stream.empty()) lost(flight.stream);
  } else {
    add(tally_.owned);
  }
  if (!flight.skipped) bytes_on_the_way_ -= flight.bytes;
  if (flight.origin.segment) {
    spool_.own(flight.origin);
  } else {
    memory_.fetch_sub(flight.item.payload.size());
  }
}

void Outbox::refuse(std::uint64_t index) {
  const std::lock_guard hold(mutex_);
  std::uint64_t at = landed_;
  for (Flight& flight : flight_) {
    if (flight.skipped) continue;
    if (at++ == index) flight.refused = true;
  }
}

Outbox::Left Outbox::left() {
  const std::lock_guard hold(mutex_);
  Left left;
  left.payloads = spool_.frames();
  left.bytes = left.spooled = spool_.bytes();
  const auto count = [&left](const Item& item) {
    ++left.payloads;
    ++left.in_memory;
    left.bytes += item.payload.size();
  };
  for (const Flight& flight : flight_) {
    if (!flight.origin.segment) count(flight.item);
  }
  for (const Item& item : held_) count(item);
  const std::lock_guard brief(gate_);
  for (const Item& item : fresh_) count(item);
  return left;
}

std::uint64_t Outbox::on_the_way() {
  const std::lock_guard hold(mutex_);
  return flight_.size();
}

void Outbox::note_spool() {
  tally_.damaged_bytes.store(spool_.lost_bytes());
}

void Outbox::close() {
  const std::lock_guard hold(mutex_);
  spool_.close();
}

}  // namespace farfield
