// Payloads in, one locked file of frames on disk, and the payloads out again in their order.
//
// A frame is: length (u32, little-endian), CRC-32 of the payload (u32, little-endian), payload. Whoever has the file
// holds flock(LOCK_EX) on it for as long as it lives; a file that can be locked has no owner.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace farfield {

class Segment {
 public:
  enum class Written { kDone, kNoRoom };
  enum class Read { kFrame, kEnd, kTorn };

  // A new file of our own under a random name; null where the folder cannot be written.
  static std::shared_ptr<Segment> create(const std::string& folder);
  // A file that somebody else left behind; null where its owner lives, or where it is gone.
  static std::shared_ptr<Segment> adopt(const std::string& path);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Appends a frame whole or not at all. No room: a full disk, a limit, a broken one.
  Written write(std::string_view payload);
  // Gives the next payload that was not read. What is behind a torn frame is lost: the file ends before it.
  Read read(std::string& payload);
  // Bytes of the payload that `read` would give next; 0 where that is none or a torn one.
  std::uint32_t peek() const;
  // Begins again with what is not owned.
  void rewind() noexcept { read_ = owned_; read_frames_ = owned_frames_; }
  // The frame that ends at `end` is owned, and all before it.
  void own(std::uint64_t end) noexcept { owned_ = end; ++owned_frames_; }
  // Forgets what is in it. False where the disk would not.
  bool truncate();
  void remove();

  bool all_owned() const noexcept { return owned_ == end_; }
  bool unread() const noexcept { return read_ < end_; }
  std::uint64_t bytes() const noexcept { return end_; }
  std::uint64_t position() const noexcept { return read_; }  // where the frame that was read last ends
  std::uint64_t frames() const noexcept { return frames_ - owned_frames_; }  // not owned
  std::uint64_t waiting() const noexcept { return end_ - owned_; }           // bytes not owned
  // Bytes behind a torn frame that were found since the last call.
  std::uint64_t take_lost() noexcept { return std::exchange(lost_, 0); }
  bool adopted() const noexcept { return adopted_; }
  const std::string& path() const noexcept { return path_; }

 private:
  Segment(std::string path, int file, bool adopted) : path_(std::move(path)), file_(file), adopted_(adopted) {}
  bool frame_at(std::uint64_t offset, std::uint32_t& length, std::uint32_t& check) const;
  void cut();
  void measure();

  std::string path_;
  int file_;
  bool adopted_;
  std::uint64_t end_ = 0, read_ = 0, owned_ = 0;  // offsets of frames
  std::uint64_t frames_ = 0, read_frames_ = 0, owned_frames_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace farfield
