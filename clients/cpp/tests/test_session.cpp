// A program's session against a gateway in this process that drops, repeats, refuses and stops.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "fake_gateway.hpp"
#include "farfield/client.hpp"
#include "farfield/wire.hpp"
#include "nets.hpp"
#include "waiting.hpp"

namespace farfield {
namespace {

using testing::announce;
using testing::eventually;
using testing::FakeGateway;
using testing::Folder;
using testing::make_net;

constexpr float kObs[8] = {0.1F, -0.2F, 0.3F, -0.4F, 0.5F, -0.6F, 0.0F, 1.0F};

struct Sessions : ::testing::Test {
  Options options() {
    Options made;
    made.address = gateway.address();
    made.run = "lander";
    made.spec = testing::lander_spec();
    made.spool = folder.path();
    made.flush = 0.0;
    made.wait = 20.0;
    return made;
  }

  // Connects, and waits for the version that was published.
  std::unique_ptr<Session> start() { return start(options()); }
  std::unique_ptr<Session> start(const Options& given) {
    auto app = connect(given);
    EXPECT_TRUE(app->wait(20.0));
    return app;
  }

  void publish(std::int64_t number, int favourite = -1) {
    gateway.publish(number, announce(make_net(static_cast<std::uint64_t>(number), 16, favourite)));
  }

  static void play(Episode& episode, int steps) {
    for (int i = 0; i < steps; ++i) {
      episode.act(kObs, 8);
      episode.reward(1.0);
    }
  }

  // Valid steps of what the gateway holds, each fragment counted once; and that no fragment of a stream is missing.
  std::uint64_t steps_there() {
    std::map<std::string, std::set<std::uint64_t>> streams;
    std::uint64_t steps = 0;
    for (const std::string& payload : gateway.distinct()) {
      if (kind_of(payload) != "Fragment") continue;
      const auto [head, columns] = decode_fragment(payload);
      streams[head.stream].insert(head.seq);
      for (const auto& [name, column] : columns) {
        if (name != "valid") continue;
        steps += static_cast<std::uint64_t>(std::count(column.bytes.begin(), column.bytes.end(), 1));
      }
    }
    for (const auto& [stream, seqs] : streams) EXPECT_EQ(*seqs.rbegin() + 1, seqs.size()) << "a gap in " << stream;
    return steps;
  }

  std::vector<Fragment> fragments() {
    std::vector<Fragment> found;
    for (const std::string& payload : gateway.payloads()) {
      if (kind_of(payload) == "Fragment") found.push_back(decode_fragment(payload).first);
    }
    return found;
  }

  static Array column(const std::string& payload, const std::string& wanted) {
    for (auto& [name, column] : decode_fragment(payload).second) {
      if (name == wanted) return column;
    }
    return {};
  }

  FakeGateway gateway;
  Folder folder;
};

TEST_F(Sessions, every_step_arrives_and_nothing_is_left) {
  publish(0);
  auto app = start();
  {
    auto episode = app->episode();
    play(episode, 100);
    episode.end();
  }
  EXPECT_TRUE(app->flush(20.0).none());
  EXPECT_EQ(steps_there(), 100U);
  const Counters now = app->counters();
  EXPECT_EQ(now.acted, 100U);
  EXPECT_EQ(now.steps, 100U);
  EXPECT_EQ(now.fallbacks, 0U);
  EXPECT_EQ(now.fragments, 7U);
  EXPECT_EQ(now.owned, 7U);
  EXPECT_EQ(now.episodes, 1U);
  EXPECT_EQ(now.version, 0);
  EXPECT_EQ(now.lag, 0U);
  EXPECT_TRUE(now.connected);
  EXPECT_TRUE(app->close(20.0).none());
  EXPECT_EQ(folder.files(), 0U);
}

TEST_F(Sessions, the_gateway_says_seed_and_rows_and_fragments_name_their_run) {
  publish(3);
  auto app = start();
  auto episode = app->episode();
  play(episode, 17);
  ASSERT_TRUE(eventually([&] { return fragments().size() == 1; }));
  const Fragment head = fragments()[0];
  EXPECT_EQ(head.run, "lander");
  EXPECT_EQ(head.version, 3U);
  EXPECT_EQ(head.source, "");
  EXPECT_EQ(head.spec, testing::lander_spec().hash());
  EXPECT_EQ(column(gateway.payloads()[0], "reward").shape, (Shape{16, 1}));
}

TEST_F(Sessions, a_connection_that_breaks_again_and_again_loses_nothing) {
  publish(0);
  gateway.change([](auto& ways) { ways.drop_after = 3; });
  auto app = start();
  auto episode = app->episode();
  play(episode, 200);
  episode.end();
  EXPECT_TRUE(app->flush(60.0).none());
  EXPECT_EQ(steps_there(), 200U);
  EXPECT_GT(gateway.calls(), 3);
  EXPECT_GE(app->counters().sent, app->counters().owned);
}

TEST_F(Sessions, acks_that_are_repeated_or_overstated_do_no_harm) {
  publish(0);
  gateway.change([](auto& ways) { ways.repeat = true; });
  auto app = start();
  auto episode = app->episode();
  play(episode, 50);
  EXPECT_TRUE(app->flush(20.0).none());
  gateway.change([](auto& ways) { ways.overstate = true; });
  play(episode, 50);
  episode.end();
  app->flush(20.0);
  ASSERT_TRUE(eventually([&] { return steps_there() == 100; }));
}

TEST_F(Sessions, a_gateway_that_stops_and_comes_back_gets_everything) {
  publish(0);
  auto app = start();
  auto episode = app->episode();
  for (int i = 0; i < 3; ++i) {
    play(episode, 40);
    gateway.stop();
    play(episode, 40);
    ASSERT_TRUE(eventually([&] { return !app->counters().connected; }));
    gateway.start();
  }
  episode.end();
  EXPECT_TRUE(app->flush(60.0).none());
  EXPECT_EQ(steps_there(), 240U);
}

TEST_F(Sessions, a_gateway_that_falls_silent_is_called_again) {
  publish(0);
  gateway.change([](auto& ways) { ways.hold = true; });
  Options given = options();
  given.patience = 0.3;
  auto app = start(given);
  auto episode = app->episode();
  play(episode, 40);
  ASSERT_TRUE(eventually([&] { return gateway.calls() >= 3; }));
  gateway.change([](auto& ways) { ways.hold = false; });
  episode.end();
  EXPECT_TRUE(app->flush(60.0).none());
  EXPECT_EQ(steps_there(), 40U);
  EXPECT_EQ(app->version(), 0);
}

TEST_F(Sessions, nobody_there_is_no_error_and_everything_arrives_later) {
  gateway.stop();
  Options absent = options();
  absent.wait = 0.05;
  auto app = connect(absent);
  {
    auto episode = app->episode();
    for (int i = 0; i < 60; ++i) {
      const int action = episode.act(kObs, 8);
      ASSERT_GE(action, 0);
      ASSERT_LT(action, 4);
      episode.reward(0.5);
    }
  }
  EXPECT_EQ(app->counters().fallbacks, 60U);
  EXPECT_FALSE(app->flush(0.01).none());
  EXPECT_TRUE(eventually([&] { return !app->trouble().empty(); }));
  gateway.start();
  EXPECT_TRUE(app->flush(60.0).none());
  EXPECT_EQ(steps_there(), 60U);
  for (const Fragment& head : fragments()) EXPECT_EQ(head.source, "fallback");
}

TEST_F(Sessions, the_first_version_takes_over_from_the_fallback) {
  Options given = options();
  given.wait = 0.0;
  given.fallback.action = {3};
  auto app = connect(given);
  auto episode = app->episode();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(episode.act(kObs, 8), 3);
  publish(0, 1);
  ASSERT_TRUE(app->wait(20.0));
  EXPECT_EQ(episode.act(kObs, 8), 1);
  episode.end();
  EXPECT_TRUE(app->flush(20.0).none());
  std::set<std::string> sources;
  for (const Fragment& head : fragments()) sources.insert(head.source);
  EXPECT_EQ(sources, (std::set<std::string>{"", "fallback"}));
}

TEST_F(Sessions, a_new_version_is_taken_up_by_the_next_act) {
  publish(1, 0);
  auto app = start();
  auto episode = app->episode();
  for (int favourite = 0; favourite < 4; ++favourite) {
    publish(10 + favourite, favourite);
    ASSERT_TRUE(eventually([&] { return app->version() == 10 + favourite; }));
    EXPECT_EQ(episode.act(kObs, 8), favourite);
    episode.reward(0.0);
  }
  EXPECT_EQ(app->counters().version, 13);
  EXPECT_EQ(app->counters().newest, 13);
}

TEST_F(Sessions, tensors_that_did_not_change_need_not_come_again) {
  publish(1, 0);
  auto app = start();
  auto episode = app->episode();
  EXPECT_EQ(episode.act(kObs, 8), 0);
  // Hidden layers are those of version 1; only the last layer comes.
  auto net = make_net(1, 16, 2);
  net.version_json.replace(net.version_json.find("\"number\":1"), 10, "\"number\":2");
  gateway.push(announce(net, "logits"));
  ASSERT_TRUE(eventually([&] { return app->version() == 2; }));
  EXPECT_EQ(episode.act(kObs, 8), 2);
}

TEST_F(Sessions, rubbish_from_the_gateway_is_counted_and_asked_for_again) {
  publish(1, 2);
  auto app = start();
  auto episode = app->episode();
  std::string damaged = announce(make_net(2, 16, 3));
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  for (const std::string& rubbish : {std::string("rubbish"), std::string(), damaged, std::string(1000, '\xff')}) {
    gateway.push(rubbish);
  }
  gateway.push(announce(make_net(2, 16, 3), "policy"));  // not all that acting needs
  ASSERT_TRUE(eventually([&] { return app->counters().rubbish > 0; }));
  EXPECT_EQ(episode.act(kObs, 8), 2) << "it goes on with what it has";
  ASSERT_TRUE(eventually([&] { return gateway.had().size() >= 2; }));
  EXPECT_EQ(gateway.had().front(), 0U);
  EXPECT_EQ(gateway.had().back(), 6U) << "it says what it holds";
  publish(5, 1);
  ASSERT_TRUE(eventually([&] { return app->version() == 5; }));
}

TEST_F(Sessions, a_version_of_another_spec_is_not_acted_with) {
  Spec other = testing::lander_spec();
  other.observations[0].name = "obs/other";
  publish(1, 2);
  auto app = start();
  gateway.push(announce(make_net(2, 16, 3, other)));
  ASSERT_TRUE(eventually([&] { return app->counters().rubbish > 0; }));
  EXPECT_EQ(app->version(), 1);
}

TEST_F(Sessions, a_refusal_for_good_is_raised_while_connect_waits) {
  const std::map<int, Error::Kind> codes = {{3, Error::Kind::Spec},
                                            {5, Error::Kind::Missing},
                                            {7, Error::Kind::Config},
                                            {9, Error::Kind::Config},
                                            {16, Error::Kind::Config}};
  for (const auto& [code, kind] : codes) {
    gateway.change([code = code](auto& ways) {
      ways.refuse_code = code;
      ways.refuse_text = "the cure";
    });
    try {
      connect(options());
      FAIL() << "code " << code;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, kind);
      EXPECT_NE(std::string(error.what()).find("the cure"), std::string::npos);
    }
  }
}

TEST_F(Sessions, a_refusal_that_comes_later_stops_sending_and_not_acting) {
  publish(0, 1);
  auto app = start();
  auto episode = app->episode();
  play(episode, 20);
  gateway.stop();
  gateway.change([](auto& ways) { ways.refuse_code = 16; });
  gateway.start();
  ASSERT_TRUE(eventually([&] { return app->refused(); }));
  const int calls = gateway.calls();
  play(episode, 100);
  EXPECT_EQ(episode.act(kObs, 8), 1);
  EXPECT_FALSE(app->flush(20.0).none()) << "and does not wait for what will not happen";
  EXPECT_EQ(gateway.calls(), calls);
  EXPECT_TRUE(eventually([&] { return app->counters().spooled_bytes > 0; }));
}

TEST_F(Sessions, too_many_is_tried_again) {
  publish(0);
  gateway.change([](auto& ways) { ways.refuse_code = 8; });
  Options patient = options();
  patient.wait = 0.2;
  auto app = connect(patient);
  EXPECT_FALSE(app->refused());
  gateway.change([](auto& ways) { ways.refuse_code = 0; });
  EXPECT_TRUE(app->wait(20.0));
}

TEST_F(Sessions, versions_that_are_refused_do_not_stop_experience) {
  gateway.change([](auto& ways) { ways.versions_code = 7; });
  auto app = connect(options());
  EXPECT_THROW(app->wait(20.0), Error);
  auto episode = app->episode();
  play(episode, 40);
  episode.end();
  EXPECT_TRUE(app->flush(20.0).none());
}

TEST_F(Sessions, refused_payloads_are_dropped_and_counted) {
  publish(0);
  gateway.change([](auto& ways) {
    ways.unwanted = [](const std::string& payload) { return decode_fragment(payload).first.seq % 2 == 1; };
  });
  auto app = start();
  auto episode = app->episode();
  play(episode, 161);  // ten fragments, and one row
  ASSERT_TRUE(eventually([&] { return app->counters().waiting == 0; }));
  EXPECT_EQ(app->counters().refused, 5U);
  EXPECT_EQ(app->counters().owned, 5U);
  EXPECT_NE(app->trouble().find("unwanted"), std::string::npos);
}

TEST_F(Sessions, after_a_gap_the_next_episode_has_a_stream_of_its_own) {
  publish(0);
  gateway.change([](auto& ways) {
    ways.unwanted = [](const std::string& payload) { return decode_fragment(payload).first.seq == 1; };
  });
  auto app = start();
  auto episode = app->episode();
  play(episode, 40);
  const std::string before = episode.decision().stream;
  ASSERT_TRUE(eventually([&] { return app->counters().refused == 1; }));
  play(episode, 1);
  EXPECT_EQ(episode.decision().stream, before);
  episode.end();
  play(episode, 1);
  EXPECT_NE(episode.decision().stream, before);
}

TEST_F(Sessions, settled_fragments_are_not_ahead) {
  publish(0);
  gateway.change([](auto& ways) { ways.settle = ways.repeat = true; });
  auto app = start();
  auto episode = app->episode();
  play(episode, 161);
  EXPECT_EQ(app->counters().fragments, 10U);
  ASSERT_TRUE(eventually([&] { return app->counters().ahead == 0; }));
}

TEST_F(Sessions, the_next_process_delivers_what_the_last_one_could_not) {
  gateway.stop();
  Options absent = options();
  absent.wait = 0.0;
  {
    auto app = connect(absent);
    auto episode = app->episode();
    play(episode, 50);
    episode.end();
    const Remaining left = app->close(0.0);
    EXPECT_EQ(left.payloads, 1U);
    EXPECT_EQ(left.in_memory, 0U);
    EXPECT_GT(left.bytes, 0U);
  }
  gateway.start();
  auto app = connect(absent);
  ASSERT_TRUE(eventually([&] { return steps_there() == 50; }));
  ASSERT_TRUE(eventually([&] { return app->counters().waiting == 0; }));
  EXPECT_EQ(app->counters().adopted, 1U);
  EXPECT_TRUE(app->close(20.0).none());
  EXPECT_EQ(folder.files(), 0U);
}

TEST_F(Sessions, without_a_spool_memory_keeps_what_it_can_and_drops_the_rest) {
  gateway.stop();
  Options small = options();
  small.spool = "";
  small.memory = 20000;
  small.wait = 0.0;
  auto app = connect(small);
  auto episode = app->episode();
  play(episode, 2000);
  episode.end();
  const Counters now = app->counters();
  EXPECT_GT(now.dropped_fragments, 0U);
  EXPECT_LE(now.memory_bytes, 20000U);
  EXPECT_EQ(now.waiting + now.dropped_fragments, now.fragments);
  gateway.start();
  EXPECT_TRUE(app->flush(60.0).none());
  const Counters then = app->counters();
  EXPECT_EQ(then.owned + then.dropped_fragments, then.fragments);
  EXPECT_EQ(folder.files(), 0U);
}

TEST_F(Sessions, rows_that_wait_are_sent_after_a_while) {
  publish(0);
  Options quick = options();
  quick.flush = 0.05;
  auto app = start(quick);
  auto episode = app->episode();
  play(episode, 5);
  EXPECT_TRUE(eventually([&] { return steps_there() == 4; })) << "the row that is open stays";
  episode.end();
  EXPECT_TRUE(eventually([&] { return steps_there() == 5; }));
}

TEST_F(Sessions, an_exception_truncates_and_a_normal_end_terminates) {
  publish(0);
  auto app = start();
  try {
    auto episode = app->episode();
    play(episode, 3);
    throw std::runtime_error("the game crashed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(app->flush(20.0).none());
  {
    auto episode = app->episode();
    play(episode, 2);
  }
  EXPECT_TRUE(app->flush(20.0).none());
  const auto payloads = gateway.payloads();
  ASSERT_EQ(payloads.size(), 2U);
  EXPECT_EQ(column(payloads[0], "truncated").bytes, (std::vector<std::uint8_t>{0, 0, 1, 0}));
  EXPECT_EQ(column(payloads[0], "valid").bytes, (std::vector<std::uint8_t>{1, 1, 1, 0}));
  EXPECT_EQ(column(payloads[1], "terminated").bytes, (std::vector<std::uint8_t>{0, 1}));
  EXPECT_EQ(fragments()[0].stream, fragments()[1].stream) << "the next episode goes on where the last one was";
}

TEST_F(Sessions, a_reward_that_comes_later_is_added_here_or_travels) {
  publish(0);
  auto app = start();
  auto episode = app->episode();
  episode.act(kObs, 8);
  const Decision first = episode.decision();
  episode.reward(1.0);
  episode.act(kObs, 8);
  app->credit(first, 0.5);
  episode.end();
  EXPECT_TRUE(app->flush(20.0).none());
  EXPECT_EQ(*column(gateway.payloads()[0], "reward").as<float>(), 1.5F);
  EXPECT_EQ(app->counters().credits, 0U);
  app->credit(Decision::parse(first.text()), 7.0, Mode::kSet, "mine");
  EXPECT_TRUE(app->flush(20.0).none());
  ASSERT_EQ(kind_of(gateway.payloads()[1]), "Credit");
  const Credit came = decode_credit(gateway.payloads()[1]);
  EXPECT_EQ(came.run, "lander");
  EXPECT_EQ(came.stream, first.stream);
  EXPECT_EQ(came.n, first.n);
  EXPECT_EQ(came.reward, 7.0);
  EXPECT_TRUE(came.set);
  EXPECT_EQ(came.id, "mine");
  EXPECT_TRUE(app->credit(first, 7.0, Mode::kSet, "mine"));
  EXPECT_EQ(app->counters().credits, 1U) << "the same one again";
  EXPECT_THROW(app->credit(first, 1.0 / 0.0), Error);
  EXPECT_THROW(app->credit({"nonsense", 1}, 1.0), Error);
}

TEST_F(Sessions, wrong_observations_are_errors_and_change_nothing) {
  publish(0);
  auto app = start();
  auto episode = app->episode();
  play(episode, 2);
  const float wrong[8] = {0, 0, 0, 0, 0, 0, 0, 0.0F / 0.0F};
  EXPECT_THROW(episode.act(wrong, 8), Error);
  EXPECT_THROW(episode.act(kObs, 7), Error);
  EXPECT_THROW(episode.reward(0.0 / 0.0), Error);
  EXPECT_THROW(episode.decide({{"nonsense", View(kObs, 8)}}), Error);
  EXPECT_THROW(episode.decide({}), Error);
  play(episode, 2);
  episode.end();
  EXPECT_TRUE(app->flush(20.0).none());
  EXPECT_EQ(steps_there(), 4U);
}

TEST_F(Sessions, options_that_cannot_be_are_errors_at_once) {
  const auto refused = [this](auto change) {
    Options wrong = options();
    change(wrong);
    EXPECT_THROW(connect(wrong), Error);
  };
  refused([](Options& wrong) { wrong.run = ""; });
  refused([](Options& wrong) { wrong.run = "../up"; });
  refused([](Options& wrong) { wrong.policy = "a/b"; });
  refused([](Options& wrong) { wrong.address = ""; });
  refused([](Options& wrong) { wrong.spec = Spec(); });
  refused([](Options& wrong) { wrong.config = "{no json"; });
  refused([](Options& wrong) { wrong.tls.ca = "/nowhere/ca.pem"; });
  refused([](Options& wrong) { wrong.fallback.action = {9}; });
  refused([](Options& wrong) { wrong.fallback.action = {1, 1}; });
}

TEST_F(Sessions, the_token_and_the_config_travel) {
  publish(0);
  Options given = options();
  given.token = "secret";
  given.config = R"({"algorithm":{"kind":"ppo"}})";
  auto app = connect(given);
  for (const std::string& token : gateway.tokens()) EXPECT_EQ(token, "Bearer secret");
  EXPECT_EQ(gateway.configs()[0], given.config);
}

TEST_F(Sessions, decisions_of_others_are_marked) {
  publish(0);
  auto app = start();
  auto episode = app->episode();
  episode.record(kObs, 8, 2, 1.0, "person");
  episode.record({{"obs", View(kObs, 8)}}, {{"action", View(std::vector<std::int64_t>{3})}}, 1.0, "person");
  episode.end();
  EXPECT_TRUE(app->flush(20.0).none());
  ASSERT_EQ(fragments().size(), 1U);
  EXPECT_EQ(fragments()[0].source, "person");
  const Array actions = column(gateway.payloads()[0], "action");
  EXPECT_EQ(actions.as<std::int64_t>()[0], 2);
  EXPECT_EQ(actions.as<std::int64_t>()[1], 3);
}

TEST_F(Sessions, masks_are_obeyed_by_policy_and_fallback) {
  Options masked = options();
  masked.spec = testing::masked_spec();
  masked.wait = 0.0;
  auto app = connect(masked);
  auto episode = app->episode();
  const bool only[4] = {false, false, true, false};
  for (int i = 0; i < 20; ++i) EXPECT_EQ(episode.act(kObs, 8, only, 4), 2);
  EXPECT_EQ(app->counters().fallbacks, 20U);
  gateway.publish(1, announce(make_net(1, 16, 0, masked.spec)));
  ASSERT_TRUE(app->wait(20.0));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(episode.act(kObs, 8, only, 4), 2);
  episode.decide({{"obs", View(kObs, 8)}, {"mask", View(only, 4)}});
  EXPECT_EQ(*episode.action<std::int64_t>(), 2);
  EXPECT_THROW(episode.action<float>(), Error);
  EXPECT_THROW(episode.act(kObs, 8), Error) << "the mask is missing";
  episode.end(true, kObs, 8);
  EXPECT_TRUE(app->flush(20.0).none());
  EXPECT_EQ(app->counters().refused, 0U);
}

TEST_F(Sessions, lanes_act_together_and_end_apart) {
  publish(0, 3);
  auto app = start();
  auto episode = app->episode(3);
  std::vector<float> obs(24, 0.5F);
  std::int64_t actions[3];
  const double rewards[3] = {1.0, 2.0, 3.0};
  const bool ended[3] = {false, true, false};
  for (int i = 0; i < 4; ++i) {
    episode.act(View(obs), actions, sizeof actions);
    for (const std::int64_t action : actions) EXPECT_EQ(action, 3);
    episode.reward(rewards, 3);
    if (i == 1) episode.restart(ended);
  }
  episode.end();
  EXPECT_TRUE(app->flush(20.0).none());
  EXPECT_EQ(steps_there(), 12U);
  const std::string payload = gateway.payloads()[0];
  EXPECT_EQ(column(payload, "reward").shape, (Shape{4, 3}));
  EXPECT_EQ(column(payload, "terminated").bytes,
            (std::vector<std::uint8_t>{0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(app->counters().acted, 12U);
  EXPECT_EQ(app->counters().episodes, 4U);
}

TEST_F(Sessions, episodes_of_many_threads_share_a_session) {
  publish(0);
  auto app = start();
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&app] {
      for (int i = 0; i < 5; ++i) {
        auto episode = app->episode();
        play(episode, 50);
      }
    });
  }
  std::thread watcher([&] {
    for (std::int64_t number = 1; !stop; ++number) {
      publish(number);
      app->counters();
      app->prometheus();
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  watcher.join();
  EXPECT_TRUE(app->flush(60.0).none());
  EXPECT_EQ(steps_there(), 1000U);
}

TEST_F(Sessions, an_episode_outlives_its_session) {
  publish(0, 2);
  auto app = start();
  auto episode = app->episode();
  play(episode, 5);
  app->close(20.0);
  app.reset();
  EXPECT_EQ(episode.act(kObs, 8), 2);
  play(episode, 100);
  episode.end();
}

TEST_F(Sessions, a_seed_told_late_holds_from_the_next_episode_on) {
  gateway.stop();
  Options absent = options();
  absent.wait = 0.0;
  auto app = connect(absent);
  auto episode = app->episode();
  play(episode, 3);
  const std::string before = episode.decision().stream;
  gateway.start();
  ASSERT_TRUE(eventually([&] { return app->counters().connected; }));
  play(episode, 3);
  EXPECT_EQ(episode.decision().stream, before);
  episode.end();
  play(episode, 1);
  EXPECT_NE(episode.decision().stream, before);
  episode.end();
  EXPECT_TRUE(app->flush(20.0).none());
  EXPECT_EQ(steps_there(), 7U);
}

TEST_F(Sessions, counters_can_be_read_by_prometheus) {
  publish(4);
  auto app = start();
  auto episode = app->episode();
  play(episode, 3);
  const std::string text = app->prometheus();
  EXPECT_NE(text.find("# TYPE farfield_session_acted_total counter\n"), std::string::npos);
  EXPECT_NE(text.find("farfield_session_acted_total{run=\"lander\",client=\""), std::string::npos);
  EXPECT_NE(text.find("policy=\"main\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("farfield_session_version{"), std::string::npos);
}

#if !defined(FARFIELD_SANITIZED)
TEST_F(Sessions, a_child_of_the_process_neither_hangs_nor_sends) {
  publish(0);
  auto app = start();
  auto episode = app->episode();
  play(episode, 3);
  const pid_t child = fork();
  if (child == 0) {
    play(episode, 100);
    episode.end();
    app->flush(1.0);
    app->close(1.0);
    _exit(0);
  }
  int status = 0;
  ASSERT_TRUE(eventually([&] { return waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  play(episode, 3);
  episode.end();
  EXPECT_TRUE(app->flush(20.0).none());
  EXPECT_EQ(steps_there(), 6U);
}
#endif

}  // namespace
}  // namespace farfield
