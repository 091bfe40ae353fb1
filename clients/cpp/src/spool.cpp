#include "spool.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>

namespace farfield {

namespace files = std::filesystem;

namespace {

constexpr std::uint64_t kHead = 8;  // of a frame
constexpr std::uint64_t kSmallest = std::uint64_t{64} << 10;
constexpr std::uint64_t kLargest = std::uint64_t{8} << 20;

struct Found {
  files::file_time_type changed;
  std::string path;
  std::uint64_t bytes;
};

// The spool files of a folder, the oldest first; nothing where it cannot be read.
std::vector<Found> list(const std::string& folder) {
  std::vector<Found> found;
  std::error_code trouble;
  files::directory_iterator at(folder, trouble);
  for (; !trouble && at != files::directory_iterator(); at.increment(trouble)) {
    if (at->path().extension() != ".spool") continue;
    std::error_code gone;
    const std::uint64_t bytes = files::file_size(at->path(), gone);
    const auto changed = files::last_write_time(at->path(), gone);
    if (!gone) found.push_back({changed, at->path().string(), bytes});
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return std::tie(a.changed, a.path) < std::tie(b.changed, b.path); });
  return found;
}

}  // namespace

Spool::Spool(std::string folder, std::uint64_t quota)
    : folder_(std::move(folder)), quota_(quota), rotate_(std::clamp(quota / 8, kSmallest, kLargest)) {}

Spool::Kept Spool::write(std::string_view payload) {
  if (!on()) return Kept::kOff;
  if (!fits(kHead + payload.size())) return Kept::kQuota;
  if (!current_ || current_->bytes() >= rotate_) {
    std::error_code ignored;  // creating the file says whether there is a folder
    files::create_directories(folder_, ignored);
    auto made = Segment::create(folder_);
    if (!made) return Kept::kNoRoom;
    current_ = made;
    segments_.push_back(std::move(made));
  }
  return current_->write(payload) == Segment::Written::kDone ? Kept::kYes : Kept::kNoRoom;
}

std::uint32_t Spool::peek() {
  const auto segment = reading();
  return segment ? segment->peek() : 0;
}

bool Spool::next(std::string& payload, Origin& origin) {
  while (const auto segment = reading()) {
    if (segment->read(payload) == Segment::Read::kFrame) {
      origin = {segment, segment->position()};
      return true;
    }
    note_damage(*segment);
    if (segment->all_owned()) retire(segment);
  }
  return false;
}

void Spool::own(const Origin& origin) {
  origin.segment->own(origin.end);
  if (origin.segment->all_owned()) retire(origin.segment);
}

void Spool::rewind() {
  for (const auto& segment : segments_) segment->rewind();
}

std::size_t Spool::adopt() {
  if (!on()) return 0;
  std::vector<std::shared_ptr<Segment>> taken;
  for (const Found& found : list(folder_)) {
    const bool ours = std::any_of(segments_.begin(), segments_.end(),
                                  [&found](const auto& segment) { return segment->path() == found.path; });
    if (ours) continue;
    auto segment = Segment::adopt(found.path);
    if (!segment) continue;
    note_damage(*segment);
    if (segment->frames() == 0) {
      segment->remove();
    } else {
      taken.push_back(std::move(segment));
    }
  }
  const auto ours = std::find_if(segments_.begin(), segments_.end(), [](const auto& each) { return !each->adopted(); });
  segments_.insert(ours, taken.begin(), taken.end());
  return taken.size();
}

void Spool::close() {
  for (const auto& segment : segments_) {
    if (segment->all_owned()) segment->remove();
  }
  segments_.clear();
  current_.reset();
}

std::uint64_t Spool::frames() const {
  std::uint64_t sum = 0;
  for (const auto& segment : segments_) sum += segment->frames();
  return sum;
}

std::uint64_t Spool::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& segment : segments_) sum += segment->waiting();
  return sum;
}

std::shared_ptr<Segment> Spool::reading() {
  for (const auto& segment : segments_) {
    if (segment->unread()) return segment;
  }
  return nullptr;
}

// Whether the folder has room: what others keep there is looked at once in a second.
bool Spool::fits(std::uint64_t bytes) {
  std::uint64_t ours = 0;
  for (const auto& segment : segments_) ours += segment->bytes();
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ > std::chrono::seconds(1)) {
    looked_ = now;
    std::uint64_t all = 0;
    for (const Found& found : list(folder_)) all += found.bytes;
    others_ = all > ours ? all - ours : 0;
  }
  return ours + others_ + bytes <= quota_;
}

void Spool::retire(const std::shared_ptr<Segment>& segment) {
  if (segment == current_ && segment->truncate()) return;
  segment->remove();
  if (segment == current_) current_.reset();
  segments_.erase(std::remove(segments_.begin(), segments_.end(), segment), segments_.end());
}

void Spool::note_damage(Segment& segment) {
  const std::uint64_t lost = segment.take_lost();
  lost_ += lost;
  damaged_ += lost > 0 ? 1 : 0;
}

}  // namespace farfield
