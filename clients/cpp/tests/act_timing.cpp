// Nothing in; how long an act takes in a program whose policy has two hidden layers of 64, with versions arriving, out.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "fake_gateway.hpp"
#include "farfield/client.hpp"
#include "nets.hpp"
#include "waiting.hpp"

int main() {
  using namespace farfield;
  using Clock = std::chrono::steady_clock;
  testing::FakeGateway gateway;
  testing::Folder folder;
  gateway.change([](auto& ways) { ways.steps = 128; });
  gateway.publish(0, testing::announce(testing::make_net(0)));
  Options options;
  options.address = gateway.address();
  options.run = "lander";
  options.spec = testing::lander_spec();
  options.spool = folder.path();
  auto app = connect(options);
  if (!app->wait(20.0)) return 1;
  auto episode = app->episode();
  std::atomic<bool> stop{false};
  std::thread versions([&] {
    for (std::uint64_t number = 1; !stop; ++number) {
      gateway.publish(static_cast<std::int64_t>(number), testing::announce(testing::make_net(number)));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  constexpr std::size_t kSteps = 500000;
  std::vector<float> obs(8, 0.1F);
  std::vector<double> acts(kSteps);
  const auto begun = Clock::now();
  for (std::size_t i = 0; i < kSteps; ++i) {
    obs[i % 8] = static_cast<float>(i % 100) / 100.0F;
    const auto before = Clock::now();
    episode.act(obs.data(), obs.size());
    acts[i] = std::chrono::duration<double, std::micro>(Clock::now() - before).count();
    episode.reward(1.0);
    if (i % 200 == 199) episode.end();
  }
  const double whole = std::chrono::duration<double>(Clock::now() - begun).count();
  stop = true;
  versions.join();
  std::sort(acts.begin(), acts.end());
  const auto at = [&](double share) { return acts[static_cast<std::size_t>(share * (kSteps - 1))]; };
  const Counters now = app->counters();
  std::printf("act: p50 %.2f us, p99 %.2f us, p99.9 %.2f us, slowest %.0f us; %zu steps, %.0f steps/s, %llu versions\n",
              at(0.5), at(0.99), at(0.999), acts.back(), kSteps, static_cast<double>(kSteps) / whole,
              static_cast<unsigned long long>(now.versions));
  app->close(20.0);
  return 0;
}
