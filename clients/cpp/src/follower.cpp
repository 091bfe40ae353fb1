// Announcements in, snapshots in the slot out: every track acts with the newest one from its next decision on.
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "farfield/wire.hpp"
#include "inside.hpp"

namespace farfield {

namespace {

// Decides once with a snapshot, so that one that cannot be acted with is refused here and not in the program.
void try_out(const Inside& inside, const std::shared_ptr<const Snapshot>& snapshot) {
  auto slot = std::make_shared<Slot>();
  slot->put(snapshot);
  Track::Options options;
  options.run = inside.options.run;
  options.stream = std::string(32, '0');
  options.steps = 1;
  Track track(slot, inside.options.spec, options, [](std::string, std::uint64_t) {});
  std::vector<std::vector<std::uint64_t>> nothing;
  std::vector<View> seen;
  for (const Field& field : inside.options.spec.observations) {
    nothing.emplace_back(field.bytes() / 8 + 1);
    seen.emplace_back(nothing.back().data(), field.dtype, field.count());
  }
  track.act(seen.data(), false, nullptr);
}

// Takes what came. False where it is not enough to act with: then ask again for what is held.
bool take(Inside& inside, Follower& follower, const std::string& payload) {
  try {
    const Announcement announcement = decode_announcement(payload, payload.size());
    const auto snapshot = follower.take(announcement);
    if (!snapshot) return false;
    if (snapshot->spec_hash != inside.spec_hash) spec_error("a version came whose spec is not ours");
    if (!inside.slot->generation() || !inside.slot->get()->like(*snapshot)) try_out(inside, snapshot);
    inside.slot->put(snapshot);
    inside.version = static_cast<std::int64_t>(snapshot->number());
    add(inside.tally.versions);
    const std::lock_guard hold(inside.mutex);
    inside.version_came = Clock::now();
  } catch (const std::exception& error) {  // whatever a server answers, the program goes on
    add(inside.tally.rubbish);
    inside.note_trouble(error.what());
    return false;
  }
  inside.wake();
  return true;
}

// One call from its beginning to its end; true when it brought anything.
bool attempt(Inside& inside, link::Channel& channel, Follower& follower, link::Outcome& outcome) {
  link::Versions call(channel);
  {
    const std::lock_guard hold(inside.calls_mutex);
    if (inside.ended() || inside.channel.get() != &channel) return false;
    inside.versions_call = &call;
  }
  call.open(inside.hello, follower.have());
  bool brought = false;
  std::string payload;
  while (call.receive(payload)) {
    if (!take(inside, follower, payload)) {
      call.cancel();
      break;
    }
    brought = true;
  }
  {
    const std::lock_guard hold(inside.calls_mutex);
    inside.versions_call = nullptr;
  }
  outcome = call.finish();
  return brought;
}

// Waits for a connection that let us in; none: the session ended, or was refused.
std::shared_ptr<link::Channel> connected(Inside& inside) {
  while (true) {
    {
      std::unique_lock hold(inside.mutex);
      inside.event.wait(hold, [&] { return inside.ended() || inside.refusal || inside.tally.connected; });
      if (inside.ended() || inside.refusal) return nullptr;
    }
    const std::lock_guard hold(inside.calls_mutex);
    if (inside.channel) return inside.channel;
  }
}

}  // namespace

void follow(Inside& inside) {
  Follower follower;
  Pauses pauses;
  while (const auto channel = connected(inside)) {
    link::Outcome outcome;
    if (attempt(inside, *channel, follower, outcome)) pauses.reset();
    if (inside.ended()) return;
    if (outcome.final()) {  // experience still goes up, and decisions are made with what is here
      const std::lock_guard hold(inside.mutex);
      inside.trouble = outcome.text;
      inside.unfollowed = outcome;
      inside.event.notify_all();
      return;
    }
    if (!outcome.ok() && !outcome.cancelled()) inside.note_trouble(outcome.text);
    pauses.wait(inside);
  }
}

}  // namespace farfield
