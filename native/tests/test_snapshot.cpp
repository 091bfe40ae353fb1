// Snapshots: from manifests, tensors and announcements; swapped under running tracks.
#include "farfield/snapshot.hpp"

#include <atomic>
#include <thread>

#include "farfield/sha256.hpp"
#include "farfield/track.hpp"
#include "golden.hpp"

using namespace farfield;

namespace {

struct Told {
  Columns tensors = columns_of(golden().at("tracks").items()[0].at("tensors"));
  std::string version = golden().at("tracks").items()[0].at("version").write();

  /// The announcement of these tensors, of which only some travel.
  Announcement announce(std::size_t number, const std::vector<std::string>& travel) const {
    Announcement made;
    made.version = Version::parse(version);
    made.version.number = number;
    for (const auto& [name, array] : tensors) {
      made.version.tensors[name] = {array.dtype, array.shape, hex(sha256(array.bytes.data(), array.bytes.size()))};
      for (const std::string& one : travel)
        if (one == name) made.tensors.emplace_back(name, array);
    }
    return made;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, array] : tensors) all.push_back(name);
    return all;
  }
};

}  // namespace

TEST(Snapshot, AFollowerMergesWhatComes) {
  Told told;
  Follower follower;
  EXPECT_EQ(follower.take(told.announce(1, {told.names()[0]})), nullptr);
  const auto whole = follower.take(told.announce(2, told.names()));
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->number(), 2u);
  EXPECT_EQ(follower.have().size(), told.tensors.size());
  told.tensors[1].second.as<float>()[0] += 1;
  EXPECT_NE(follower.take(told.announce(3, {told.names()[1]})), nullptr);
  told.tensors[2].second.as<float>()[0] += 1;
  EXPECT_EQ(follower.take(told.announce(4, {})), nullptr);  // it lacks what changed
}

TEST(Snapshot, BrokenTensorsAreRefused) {
  Told told;
  told.tensors[0].second.as<float>()[0] = NAN;
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { Snapshot::make(told.version, told.tensors); }));
  told.tensors.erase(told.tensors.begin());
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { Snapshot::make(told.version, told.tensors); }));
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { Snapshot::make("{}", told.tensors); }));
}

TEST(Snapshot, VersionsArriveWhileManyTracksAct) {
  const Told told;
  const auto slot = std::make_shared<Slot>();
  const Spec spec = Version::parse(told.version).spec;
  slot->put(Snapshot::make(told.version, told.tensors));
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> rows{0};
  std::vector<std::thread> threads;
  const auto shared =
      std::make_shared<Track>(slot, spec, Track::Options{"r", "main", "a", std::string(32, 'a'), 1, 16, 0},
                              [&](std::string, std::uint64_t steps) { rows += steps; });
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      Track own(slot, spec, {"r", "main", "a", std::string(32, static_cast<char>('0' + i)), 1, 16, 0},
                [&](std::string, std::uint64_t steps) { rows += steps; });
      const float obs[4] = {1, 2, 3, 4};
      for (int turn = 0; turn < 2000; ++turn) {
        own.act(obs, 4);
        own.reward(1);
        shared->act(obs, 4);
        if (turn % 100 == 0) shared->cut();
      }
      own.end();
      own.cut();
    });
  std::thread putter([&] {
    while (!done) slot->put(Snapshot::make(told.version, told.tensors));
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  putter.join();
  shared->end();
  shared->cut();
  EXPECT_EQ(rows, 12000u);
}
