// Nothing between two fragments takes memory.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "fake_gateway.hpp"
#include "farfield/client.hpp"
#include "nets.hpp"
#include "waiting.hpp"

namespace {
thread_local std::size_t taken = 0;  // by this thread: others may do as they like
}

// Not inlined: the compiler would see malloc and free, and take them for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++taken;
  if (void* found = std::malloc(size)) return found;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace farfield {
namespace {

constexpr float kObs[8] = {};
constexpr bool kMask[4] = {true, false, true, true};

template <class Act>
std::size_t taken_by(Act&& act, int steps) {
  act();
  const std::size_t before = taken;
  for (int i = 0; i < steps; ++i) act();
  return taken - before;
}

class Allocation : public ::testing::TestWithParam<bool> {
 protected:
  // With a version to act with, or without one.
  std::unique_ptr<Session> start(const Spec& spec) {
    gateway.change([](auto& ways) { ways.steps = 1000; });
    if (GetParam()) gateway.publish(0, testing::announce(testing::make_net(0, 16, -1, spec)));
    Options options;
    options.address = gateway.address();
    options.run = "lander";
    options.spec = spec;
    options.spool = folder.path();
    options.flush = 0.0;
    options.wait = GetParam() ? 20.0 : 0.0;
    auto app = connect(options);
    EXPECT_EQ(app->wait(GetParam() ? 20.0 : 0.0), GetParam());
    EXPECT_TRUE(testing::eventually([&] { return app->counters().connected; }));
    return app;
  }
  testing::FakeGateway gateway;
  testing::Folder folder;
};

INSTANTIATE_TEST_SUITE_P(Kinds, Allocation, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "by_policy" : "by_fallback"; });

TEST_P(Allocation, none_in_act_and_reward) {
  auto app = start(testing::lander_spec());
  auto episode = app->episode();
  const auto step = [&] {
    episode.act(kObs, 8);
    episode.reward(1.0);
  };
  EXPECT_EQ(taken_by(step, 500), 0U);
}

TEST_P(Allocation, none_with_masks_and_names) {
  auto app = start(testing::masked_spec());
  auto episode = app->episode();
  const auto step = [&] {
    episode.act(kObs, 8, kMask, 4);
    episode.decide({{"obs", View(kObs, 8)}, {"mask", View(kMask, 4)}});
    episode.reward(1.0);
  };
  EXPECT_EQ(taken_by(step, 250), 0U);
}

TEST_P(Allocation, none_in_end) {
  auto app = start(testing::lander_spec());
  auto episode = app->episode();
  const auto step = [&] {
    episode.act(kObs, 8);
    episode.end();
  };
  EXPECT_EQ(taken_by(step, 300), 0U);
}

}  // namespace
}  // namespace farfield
