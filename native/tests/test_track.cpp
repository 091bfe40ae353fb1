// Tracks: the fragments that Python's tracks wrote, and the rules one by one.
#include "farfield/track.hpp"

#include "farfield/sha256.hpp"
#include "golden.hpp"

using namespace farfield;

namespace {

struct Live {
  std::shared_ptr<Slot> slot = std::make_shared<Slot>();
  std::vector<std::pair<Fragment, Columns>> fragments;
  std::unique_ptr<Track> track;
  Spec spec;

  explicit Live(std::size_t kind = 0, std::size_t steps = 6, std::size_t lanes = 0) {
    const Json& told = golden().at("tracks").items()[kind];
    spec = Spec::read(told.at("spec"));
    slot->put(Snapshot::make(told.at("version").write(), columns_of(told.at("tensors"))));
    track = std::make_unique<Track>(
        slot, spec, Track::Options{"golden", "main", "a", "00112233445566778899aabbccddeeff", 3, steps, lanes},
        [this](std::string payload, std::uint64_t) { fragments.push_back(decode_fragment(payload)); });
  }

  std::int64_t act(float x) {
    const float obs[4] = {x, x, x, x};
    return track->act(obs, 4);
  }
};

const float* floats(const Columns& columns, const char* name) { return find(columns, name).as<float>(); }

}  // namespace

TEST(Track, WritesWhatPythonWrote) {
  for (std::size_t kind = 0; kind < 3; ++kind) {
    Live run(kind);
    const Json& told = golden().at("tracks").items()[kind];
    int turn = 0;
    for (const Json& call : told.at("calls").items()) {
      const std::string& name = call.items()[0].text();
      if (name == "act") {
        ++turn;
        std::vector<float> obs;
        for (const Json& one : call.items()[1].items()) obs.push_back(static_cast<float>(one.real()));
        EXPECT_EQ(run.track->act(obs.data(), obs.size(), turn % 9 == 0), call.items()[2].integer()) << turn;
      } else if (name == "reward") {
        run.track->reward(call.items()[1].real());
      } else {
        run.track->end(call.items()[1].flag());
      }
    }
    run.track->cut();
    const std::vector<Json>& expected = told.at("fragments").items();
    ASSERT_EQ(run.fragments.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::string& digits = expected[i].text();
      const auto [head, columns] = decode_fragment(unhex(digits, digits.size() / 2, "fragment"));
      const auto& [came_head, came] = run.fragments[i];
      EXPECT_EQ(came_head.seq, head.seq);
      EXPECT_EQ(came_head.decision, head.decision);
      EXPECT_EQ(came_head.spec, head.spec);
      ASSERT_EQ(came.size(), columns.size());
      for (std::size_t c = 0; c < columns.size(); ++c) {
        ASSERT_EQ(came[c].first, columns[c].first);
        ASSERT_EQ(came[c].second.shape, columns[c].second.shape) << came[c].first;
        const bool computed =
            came[c].first == "log_prob" || came[c].first.rfind("memory/", 0) == 0 || came[c].first == "episode/return";
        if (computed)
          expect_near(came[c].second.as<float>(), columns[c].second, 1e-5, came[c].first);
        else
          EXPECT_EQ(came[c].second.bytes, columns[c].second.bytes) << came[c].first;
      }
    }
  }
}

TEST(Track, RewardsAddToTheOpenRow) {
  Live run;
  EXPECT_TRUE(raises(Error::Kind::Spec, [&] { run.track->reward(1); }));
  run.act(0);
  run.track->reward(1);
  run.track->reward(2.5);
  for (const double bad : {double(NAN), double(INFINITY), 1e39})
    EXPECT_TRUE(raises(Error::Kind::Spec, [&] { run.track->reward(bad); }));
  run.act(1);
  EXPECT_TRUE(run.track->credit(0, 4, false));
  EXPECT_TRUE(run.track->credit(1, 9, true));
  EXPECT_FALSE(run.track->credit(2, 9, true));
  EXPECT_EQ(run.track->cut(), 1u);
  EXPECT_FALSE(run.track->credit(0, 4, false));
  run.track->end();
  run.track->cut();
  ASSERT_EQ(run.fragments.size(), 2u);
  EXPECT_EQ(floats(run.fragments[0].second, "reward")[0], 7.5f);
  EXPECT_EQ(floats(run.fragments[0].second, "obs")[4], 1.0f);  // what was seen next
  EXPECT_EQ(floats(run.fragments[1].second, "reward")[0], 9.0f);
  EXPECT_EQ(floats(run.fragments[1].second, "obs")[4], 1.0f);  // nothing was: repeated
  EXPECT_EQ(run.fragments[1].first.decision, 1u);
}

TEST(Track, AFullFragmentLeavesWithTheNextObservation) {
  Live run;
  for (int i = 0; i <= 6; ++i) run.act(float(i));
  ASSERT_EQ(run.fragments.size(), 1u);
  EXPECT_EQ(find(run.fragments[0].second, "obs").shape, (Shape{7, 1, 4}));
  EXPECT_EQ(floats(run.fragments[0].second, "obs")[6 * 4], 6.0f);
  EXPECT_EQ(run.track->rows(), 1u);
  EXPECT_EQ(run.track->decision(), 6u);
}

TEST(Track, TruncationShowsTheLastObservationInARowThatIsNoStep) {
  Live run;
  run.act(1);
  const float last[4] = {5, 5, 5, 5};
  const View view(last, 4);
  run.track->end(true, &view);
  run.act(2);
  run.track->end();
  run.track->end();  // nothing is open: nothing happens
  run.track->cut();
  const Columns& columns = run.fragments.at(0).second;
  EXPECT_EQ(find(columns, "valid").bytes, (std::vector<std::uint8_t>{1, 0, 1}));
  EXPECT_EQ(find(columns, "first").bytes, (std::vector<std::uint8_t>{1, 0, 1}));
  EXPECT_EQ(find(columns, "truncated").bytes, (std::vector<std::uint8_t>{1, 0, 0}));
  EXPECT_EQ(find(columns, "terminated").bytes, (std::vector<std::uint8_t>{0, 0, 1}));
  EXPECT_EQ(floats(columns, "obs")[4], 5.0f);
  EXPECT_EQ(floats(columns, "log_prob")[1], 0.0f);
  EXPECT_EQ(find(columns, "episode/length").shape, (Shape{2}));
}

TEST(Track, AnotherSourceCutsTheFragment) {
  Live run;
  run.act(1);
  const float obs[4] = {2, 2, 2, 2};
  const std::int64_t chosen = 2;
  const View seen(obs, 4), action(&chosen, 1);
  const double reward = 3;
  run.track->record(&seen, &action, &reward, 1, "person");
  run.act(3);
  run.track->end();
  run.track->cut();
  ASSERT_EQ(run.fragments.size(), 3u);
  EXPECT_EQ(run.fragments[1].first.source, "person");
  EXPECT_THROW(floats(run.fragments[1].second, "log_prob"), std::runtime_error);
  EXPECT_EQ(floats(run.fragments[0].second, "obs")[4], 2.0f);
  EXPECT_EQ(find(run.fragments[1].second, "action").as<std::int64_t>()[0], 2);
  const std::int64_t wrong = 3;
  const View beyond(&wrong, 1);
  EXPECT_TRUE(raises(Error::Kind::Spec, [&] { run.track->record(&seen, &beyond, &reward, 1, "person"); }));
}

TEST(Track, LanesEndByThemselves) {
  Live run(0, 6, 3);
  std::vector<float> obs(12, 1.0f);
  const View seen(obs);
  std::int64_t chosen[3];
  void* out[] = {chosen};
  run.track->act(&seen, false, out);
  const bool over[3] = {true, true, false}, cut[3] = {false, true, false};
  run.track->restart(over, cut, nullptr);
  const double rewards[3] = {1, 2, 3};
  run.track->reward(rewards, 3);
  run.track->act(&seen, false, out);
  run.track->end();
  run.track->cut();
  const Columns& columns = run.fragments.at(0).second;
  EXPECT_EQ(find(columns, "terminated").bytes, (std::vector<std::uint8_t>{1, 0, 0, 1, 1, 1}));
  EXPECT_EQ(find(columns, "truncated").bytes, (std::vector<std::uint8_t>{0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(find(columns, "first").bytes, (std::vector<std::uint8_t>{1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(find(columns, "final/index").as<std::int32_t>()[1], 1);
  EXPECT_EQ(find(columns, "final/obs").shape, (Shape{1, 4}));
}

TEST(Track, WrongObservationsChangeNothing) {
  Live run;
  const float bad[4] = {0, NAN, 0, 0};
  EXPECT_TRUE(raises(Error::Kind::Spec, [&] { run.track->act(bad, 4); }));
  EXPECT_TRUE(raises(Error::Kind::Spec, [&] { run.track->act(bad, 3); }));
  EXPECT_EQ(run.track->rows(), 0u);
  Live empty;
  empty.slot->put(nullptr);
  EXPECT_TRUE(raises(Error::Kind::Missing, [&] { empty.act(0); }));
  EXPECT_EQ(empty.track->version(), -1);
}

TEST(Track, AdviceChangesNothing) {
  Live run(1), other(1);
  const float obs[4] = {1, 1, 1, 1};
  const View seen(obs, 4);
  double sum = 0;
  for (const float score : run.track->scores(&seen)) sum += std::exp(score);
  EXPECT_NEAR(sum, 1, 1e-6);
  for (int i = 0; i < 20; ++i) {
    run.track->scores(&seen);
    EXPECT_EQ(run.act(float(i)), other.act(float(i)));
  }
}
