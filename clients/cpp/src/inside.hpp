// What the threads and the episodes of one session share.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "farfield/client.hpp"
#include "farfield/snapshot.hpp"
#include "farfield/track.hpp"
#include "link.hpp"
#include "outbox.hpp"
#include "tally.hpp"

namespace farfield {

using Clock = std::chrono::steady_clock;

inline Clock::duration seconds(double count) {
  const double bounded = count < 0.0 ? 0.0 : count < 1e8 ? count : 1e8;  // three years are for ever
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

// What a run tells its clients, as far as tracks need it.
struct Facts {
  std::uint64_t seed = 0;
  std::size_t steps = 128;
  std::size_t limit = std::size_t{16} << 20;  // bytes of a fragment
  bool operator==(const Facts& other) const { return seed == other.seed && steps == other.steps && limit == other.limit; }
};

// One stream: taken by an episode, or waiting for the next one.
struct Seat {
  std::string stream;
  std::size_t lanes = 0;
  Facts facts;
  bool taken = false;  // guarded by Inside::seats_mutex
  std::atomic<std::uint64_t> finished{0}, settled{0};  // fragments
  std::atomic<bool> lost{false};                       // a fragment of it is missing for ever: a learner goes no further in this stream
  std::unique_ptr<Track> track;
};

struct Inside {
  explicit Inside(Options given);

  // A seat for an episode; made anew where none of its kind waits.
  std::shared_ptr<Seat> sit(std::size_t lanes);
  void leave(const std::shared_ptr<Seat>& seat);
  std::vector<std::shared_ptr<Seat>> all_seats();
  // Whether the next episode had better have another stream.
  bool outdated(const Seat& seat) const { return seat.lost || !(seat.facts == current_facts()); }
  void note_lost(const std::string& stream);
  // Waits while more of a stream is not settled than the run's window allows.
  void yield_turn(const Seat& seat);
  Facts current_facts() const;

  void made(std::string payload, std::uint64_t steps);
  void wake();
  bool forked() const;
  void note_trouble(const std::string& text);
  void cut_all();
  bool ended() const { return stopping.load(); }

  const Options options;
  const std::string spec_json, spec_hash;
  link::Hello hello;
  link::Target target;
  const pid_t process;

  Tally tally;
  Outbox outbox;
  const std::shared_ptr<Slot> slot = std::make_shared<Slot>();

  mutable std::mutex mutex;  // guards what follows, up to the line
  std::condition_variable event;
  std::uint64_t events = 0;
  Facts facts;
  std::optional<link::Welcome> welcome;
  std::optional<link::Outcome> refusal;     // final
  std::optional<link::Outcome> unfollowed;  // final, of versions alone
  std::string trouble;
  Clock::time_point version_came{};
  // ----
  std::atomic<std::int64_t> version{-1};  // the newest that came
  std::atomic<bool> stopping{false};

  bool known(const std::string& id);  // whether a credit of this id was given before
  std::mutex credits_mutex;
  std::deque<std::string> credits;  // the last ids

  std::mutex closing;
  std::optional<Remaining> left;  // once it is closed

  std::mutex seats_mutex;
  std::vector<std::shared_ptr<Seat>> seats;

  // Threads; started by connect, ended by close.
  void start();
  void stop();
  std::mutex calls_mutex;
  link::Append* append_call = nullptr;  // that can be cancelled
  link::Versions* versions_call = nullptr;
  std::shared_ptr<link::Channel> channel;         // of the connection that stands
  std::atomic<Clock::time_point> heard{};         // when something came from the gateway
  std::vector<std::thread> threads;
};

// The loops of the threads.
void keep(Inside& inside);    // to disk, and rows that waited long enough into fragments
void send(Inside& inside);    // to the gateway, endlessly
void follow(Inside& inside);  // versions

// Pauses between attempts: 0.05 s at first, then twice as long each time, up to 1 s.
class Pauses {
 public:
  // Waits; ends at once when the session does.
  void wait(Inside& inside);
  void reset() { next_ = 0.05; }

 private:
  double next_ = 0.05;
};

}  // namespace farfield
