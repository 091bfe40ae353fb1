#include "segment.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "crc32.hpp"
#include "random.hpp"

namespace farfield {

namespace {

constexpr std::uint64_t kHead = 8;

bool lock(int file) {
  int outcome = 0;
  do {
    outcome = flock(file, LOCK_EX | LOCK_NB);
  } while (outcome != 0 && errno == EINTR);
  return outcome == 0;
}

// Whether the file still has its name: another process may have adopted and removed it before we had the lock.
bool linked(int file) {
  struct stat facts {};
  return fstat(file, &facts) == 0 && facts.st_nlink > 0;
}

bool read_all(int file, char* out, std::size_t size, std::uint64_t offset) {
  while (size > 0) {
    const ssize_t came = pread(file, out, size, static_cast<off_t>(offset));
    if (came < 0 && errno == EINTR) continue;
    if (came <= 0) return false;
    out += came;
    size -= static_cast<std::size_t>(came);
    offset += static_cast<std::uint64_t>(came);
  }
  return true;
}

std::uint32_t number(const char* bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(bytes);
  return std::uint32_t{at[0]} | std::uint32_t{at[1]} << 8 | std::uint32_t{at[2]} << 16 | std::uint32_t{at[3]} << 24;
}

void number(std::uint32_t value, char* bytes) {
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
}

}  // namespace

std::shared_ptr<Segment> Segment::create(const std::string& folder) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string path = folder + "/" + random_digits(16) + ".spool";
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) {
      if (errno == EEXIST || errno == EINTR) continue;
      return nullptr;
    }
    if (lock(file) && linked(file)) return std::shared_ptr<Segment>(new Segment(path, file, false));
    close(file);  // somebody took it for one without an owner
  }
  return nullptr;
}

std::shared_ptr<Segment> Segment::adopt(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return nullptr;
  if (!lock(file) || !linked(file)) {
    close(file);
    return nullptr;
  }
  std::shared_ptr<Segment> found(new Segment(path, file, true));
  found->measure();
  return found;
}

Segment::~Segment() { close(file_); }

Segment::Written Segment::write(std::string_view payload) {
  std::array<char, kHead> head{};
  number(static_cast<std::uint32_t>(payload.size()), head.data());
  number(crc32(payload), head.data() + 4);
  std::size_t done = 0;
  const std::size_t whole = kHead + payload.size();
  while (done < whole) {
    std::array<iovec, 2> parts{};
    int count = 0;
    if (done < kHead) parts[static_cast<std::size_t>(count++)] = {head.data() + done, kHead - done};
    const std::size_t skipped = done < kHead ? 0 : done - kHead;
    parts[static_cast<std::size_t>(count++)] = {const_cast<char*>(payload.data()) + skipped, payload.size() - skipped};
    const ssize_t wrote = pwritev(file_, parts.data(), count, static_cast<off_t>(end_ + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      cut();
      return Written::kNoRoom;
    }
    done += static_cast<std::size_t>(wrote);
  }
  end_ += whole;
  ++frames_;
  return Written::kDone;
}

Segment::Read Segment::read(std::string& payload) {
  if (read_ >= end_) return Read::kEnd;
  std::uint32_t length = 0;
  std::uint32_t check = 0;
  if (frame_at(read_, length, check)) {
    payload.resize(length);
    if (read_all(file_, payload.data(), length, read_ + kHead) && crc32(payload) == check) {
      read_ += kHead + length;
      ++read_frames_;
      return Read::kFrame;
    }
  }
  lost_ += end_ - read_;
  end_ = read_;
  frames_ = read_frames_;
  cut();
  return Read::kTorn;
}

std::uint32_t Segment::peek() const {
  std::uint32_t length = 0;
  std::uint32_t check = 0;
  return read_ < end_ && frame_at(read_, length, check) ? length : 0;
}

bool Segment::truncate() {
  if (ftruncate(file_, 0) != 0) return false;
  end_ = read_ = owned_ = frames_ = read_frames_ = owned_frames_ = 0;
  return true;
}

void Segment::remove() { unlink(path_.c_str()); }

bool Segment::frame_at(std::uint64_t offset, std::uint32_t& length, std::uint32_t& check) const {
  std::array<char, kHead> head{};
  if (offset + kHead > end_ || !read_all(file_, head.data(), head.size(), offset)) return false;
  length = number(head.data());
  check = number(head.data() + 4);
  return length > 0 && offset + kHead + length <= end_;
}

// Takes away what is behind the last whole frame. Where the disk does not let us, the next frame is written over it.
void Segment::cut() {
  if (ftruncate(file_, static_cast<off_t>(end_)) != 0) return;
}

// Counts the frames of an adopted file by their heads; a torn one ends it.
void Segment::measure() {
  struct stat facts {};
  if (fstat(file_, &facts) != 0) return;
  end_ = static_cast<std::uint64_t>(facts.st_size);
  std::uint64_t at = 0;
  std::uint32_t length = 0;
  std::uint32_t check = 0;
  while (at < end_ && frame_at(at, length, check)) {
    at += kHead + length;
    ++frames_;
  }
  lost_ = end_ - at;
  end_ = at;
}

}  // namespace farfield
