// Observations, rewards and ends of one stream in; actions at once, and encoded fragments whenever one is full, out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "farfield/snapshot.hpp"

namespace farfield {

/// The rows of one stream while they are written. Every call is atomic; any thread may call.
///
/// Observations are one View for each observation field of the spec, in the spec's order (masks included), without
/// the axis of lanes where lanes = 0. Where a last observation is taken, a View without data means: as it was before.
/// Actions go into one buffer for each action field, in the spec's order.
class Track {
 public:
  /// Takes a finished, encoded fragment and its number of valid steps. Called while the track is locked and in the
  /// order of seq: it must neither call the track nor raise.
  using Emit = std::function<void(std::string payload, std::uint64_t rows)>;

  struct Options {
    std::string run, policy = "main", actor;
    std::string stream;       // 32 hexadecimal digits, drawn at random for every track
    std::uint64_t seed = 0;   // of the noise: the welcome's
    std::size_t steps = 128;  // rows of a fragment
    std::size_t lanes = 0;    // 0: plain, one lane
  };

  Track(std::shared_ptr<Slot> slot, const Spec& spec, Options options, Emit emit);
  ~Track();
  Track(const Track&) = delete;
  Track& operator=(const Track&) = delete;

  /// Opens a row and decides it with the newest version. SpecError and MissingError leave everything as it was.
  void act(const View* observations, bool greedy, void* const* actions);
  /// The same for one observation field of float32 and one discrete action of one lane.
  std::int64_t act(const float* observation, std::size_t count, bool greedy = false);

  /// Adds to the open row, in every lane the same or in each its own.
  void reward(double amount);
  void reward(const double* amounts, std::size_t lanes);

  /// Ends the episode after the open row. Truncated: `last` (or what was seen last, when null) is shown in a row that
  /// is not valid, so that a learner may value it.
  void end(bool truncated = false, const View* last = nullptr);
  /// Ends the episodes of some lanes after the open row; the others go on. `truncated` (or null: none) says which of
  /// them were only cut; `last` [lanes, …] is what they saw last (or null: the open row's).
  void restart(const bool* ended, const bool* truncated = nullptr, const View* last = nullptr);

  /// Writes a row that somebody else decided: "person", "heuristic", "host", …
  void record(const View* observations, const View* actions, const double* reward, std::size_t rewards,
              const std::string& source);
  /// Opens a row that a server decided. `log_prob` [lanes] or null (0); `memory` is the state before this row of each
  /// recurrent node [lanes, …], or null.
  void put(const View* observations, const View* actions, const float* log_prob, const Columns* memory,
           std::uint64_t version, std::uint64_t attempt, const std::string& source = "");

  /// Changes the reward of a decision that is still here; false when it is not.
  bool credit(std::uint64_t n, double amount, bool set);
  /// Emits the closed rows now, if there are any; gives how many.
  std::size_t cut();

  /// The log-probabilities or values of each choice for an observation, without acting; see Heads::scores.
  std::vector<float> scores(const View* observations) const;

  /// What the next decision would remember, [lanes, …] for each recurrent node.
  Columns memory() const;

  std::uint64_t decision() const;  // of lane 0 of what was decided last
  std::uint64_t seq() const;
  std::size_t rows() const;      // closed or open, that wait
  double oldest() const;         // time of std::chrono::steady_clock, in seconds, when the first came; 0: there is none
  std::int64_t version() const;  // acted with last; -1: none
  const Spec& spec() const;
  std::size_t lanes() const;

 private:
  struct Body;
  mutable std::mutex mutex_;
  std::unique_ptr<Body> body_;
};

}  // namespace farfield
