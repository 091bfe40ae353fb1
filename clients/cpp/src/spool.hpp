// Payloads in, files of one run's folder, and the payloads out again, those of dead processes first.
//
// Not thread-safe: the outbox holds its lock around every call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "segment.hpp"

namespace farfield {

class Spool {
 public:
  enum class Kept {
    kYes,
    kQuota,   // the folder holds all that it may
    kNoRoom,  // the disk takes no more, or cannot be written
    kOff,     // there is no folder
  };
  // Where a payload came from, so that it can be owned.
  struct Origin {
    std::shared_ptr<Segment> segment;
    std::uint64_t end = 0;
  };

  // `folder` is the run's; empty: nothing is ever kept.
  Spool(std::string folder, std::uint64_t quota);

  Kept write(std::string_view payload);
  // Bytes of the payload that `next` would give; 0 where there is none (or where it is torn).
  std::uint32_t peek();
  // Gives the next payload that was not given yet.
  bool next(std::string& payload, Origin& origin);
  // Owned: its file is emptied or removed when nothing else is in it. Payloads are owned in the order given.
  void own(const Origin& origin);
  // Gives what is not owned once more.
  void rewind();
  // Takes over files whose owners are dead; says how many.
  std::size_t adopt();
  // Removes our files where nothing is left in them.
  void close();

  bool on() const noexcept { return !folder_.empty(); }
  std::uint64_t frames() const;       // not owned
  std::uint64_t bytes() const;        // not owned
  std::uint64_t files() const noexcept { return segments_.size(); }
  std::uint64_t damaged() const noexcept { return damaged_; }  // files that ended in a torn frame
  std::uint64_t lost_bytes() const noexcept { return lost_; }  // behind torn frames

 private:
  std::shared_ptr<Segment> reading();
  bool fits(std::uint64_t bytes);
  void retire(const std::shared_ptr<Segment>& segment);
  void note_damage(Segment& segment);

  std::string folder_;
  std::uint64_t quota_;
  std::uint64_t rotate_;                             // a file of this size is followed by another one
  std::vector<std::shared_ptr<Segment>> segments_;   // adopted ones first, ours last
  std::shared_ptr<Segment> current_;                 // that we write to; none until something is written
  std::uint64_t others_ = 0;                         // bytes of files that are not ours, when last looked at
  std::chrono::steady_clock::time_point looked_{};
  std::uint64_t damaged_ = 0, lost_ = 0;
};

}  // namespace farfield
