// Announcements in, snapshots out as soon as all tensors are there.
#include <iterator>

#include "farfield/error.hpp"
#include "farfield/sha256.hpp"
#include "farfield/wire.hpp"

namespace farfield {

std::shared_ptr<const Snapshot> Follower::take(const Announcement& announcement) {
  for (const auto& [name, array] : announcement.tensors)
    held_[name] = {array, announcement.version.tensors.at(name).sha256};
  for (auto held = held_.begin(); held != held_.end();)  // what no version names any more is let go
    held = announcement.version.tensors.count(held->first) ? std::next(held) : held_.erase(held);
  for (const std::string& name : announcement.version.network.acting()) {
    const auto held = held_.find(name);
    const auto told = announcement.version.tensors.find(name);
    if (told == announcement.version.tensors.end())
      corrupt_error("version " + std::to_string(announcement.version.number) + ": its manifest lacks the tensor '" +
                    name + "'");
    if (held == held_.end() || held->second.sha256 != told->second.sha256) return nullptr;
  }
  return Snapshot::make(announcement.version, [this](const std::string& name) -> View {
    const auto held = held_.find(name);
    return held == held_.end() ? View() : View(held->second.array);
  });
}

std::map<std::string, std::string> Follower::have() const {
  std::map<std::string, std::string> found;
  for (const auto& [name, held] : held_) found[name] = unhex(held.sha256, 32, "tensor '" + name + "'");
  return found;
}

}  // namespace farfield
