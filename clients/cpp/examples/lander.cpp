// Landers that learn to land while they fly: trains LunarLander on the system's Box2D over a gateway.
//
//   farfield serve &
//   lander [--address HOST:PORT] [--run NAME] [--seed N] [--landers N] [--steps N] [--episodes N] [--target RETURN]
//          [--token TOKEN]
//
// Prints the mean return of the last 100 episodes, and the versions that came. Ends after so many steps or episodes, or
// once the mean return reaches the target.
#include "lander.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "farfield/client.hpp"

namespace {

constexpr std::size_t kBatch = 16;  // landers of a batch

// What to create the run with: PPO with settings that land. A batch is 256 steps of 16 landers; those that fly here are
// never more than one batch ahead of what was learned from.
std::string config(std::size_t landers) {
  const std::size_t window = std::max<std::size_t>(1, kBatch / landers);
  return R"({"algorithm": {"kind": "ppo", "epochs": 8, "minibatch": 512, "learning_rate": 1e-3, "gamma": 0.997,
             "lam": 0.98, "entropy": 0.01, "reward_scaling": true},
             "lanes": {"count": )" +
         std::to_string(kBatch) + R"(, "steps": 256}, "window": )" + std::to_string(window) + "}";
}

struct Wish {
  farfield::Options options;
  std::uint64_t seed = 1;
  std::size_t landers = kBatch;
  double steps = 1e6, episodes = std::numeric_limits<double>::infinity();
  double target = 200.0;
};

Wish read(int count, char** words) {
  Wish wish;
  wish.options.run = "lander-cpp";
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = words[i];
    const std::string value = words[i + 1];
    if (name == "--address") wish.options.address = value;
    else if (name == "--run") wish.options.run = value;
    else if (name == "--token") wish.options.token = value;
    else if (name == "--seed") wish.seed = std::stoull(value);
    else if (name == "--landers") wish.landers = std::stoull(value);
    else if (name == "--steps") wish.steps = std::stod(value);
    else if (name == "--episodes") wish.episodes = std::stod(value);
    else if (name == "--target") wish.target = std::stod(value);
    else throw std::invalid_argument("unknown option " + name);
  }
  wish.options.spec.observations = {farfield::box("obs", {lander::kInputs})};
  wish.options.spec.actions = {farfield::discrete("action", lander::kActions)};
  if (wish.landers == 0) throw std::invalid_argument("--landers: expected at least 1");
  wish.options.config = config(wish.landers);
  wish.options.pace = true;  // a simulator may wait for its learner; a real lander would not
  return wish;
}

class Progress {
 public:
  void add(double reward) {
    returns_.push_back(reward);
    if (returns_.size() > 100) returns_.pop_front();
    ++episodes_;
  }
  double mean() const {
    return std::accumulate(returns_.begin(), returns_.end(), 0.0) / static_cast<double>(returns_.size());
  }
  bool reached(double target) const { return returns_.size() == 100 && mean() >= target; }
  double episodes() const { return static_cast<double>(episodes_); }

  void print(double steps, const farfield::Counters& now) const {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
    std::printf("%8.0f steps %6.0f episodes  return %7.1f  version %lld  %6.0f steps/s  %llu waiting, %llu dropped\n",
                steps, episodes(), mean(), static_cast<long long>(now.version), steps / seconds,
                static_cast<unsigned long long>(now.waiting), static_cast<unsigned long long>(now.dropped_fragments));
    std::fflush(stdout);
  }

 private:
  std::deque<double> returns_;
  std::size_t episodes_ = 0;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

// All landers that fly side by side, and what each saw, did and got.
class Fleet {
 public:
  Fleet(std::size_t count, std::uint64_t seed)
      : seen(count * lander::kInputs), last(seen), actions(count), rewards(count), ended(new bool[count]),
        truncated(new bool[count]), sums_(count) {
    for (std::size_t i = 0; i < count; ++i) {
      tasks_.emplace_back(std::make_unique<lander::Lander>(seed * 1000 + i));
      show(seen, i, tasks_[i]->reset());
    }
  }

  // Steps every lander; those that landed, crashed or ran out of time begin anew. Says whether there were any.
  bool step(Progress& progress) {
    bool any = false;
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      const lander::Step step = tasks_[i]->step(static_cast<int>(actions[i]));
      rewards[i] = step.reward;
      sums_[i] += step.reward;
      ended[i] = step.terminated || step.truncated;
      truncated[i] = step.truncated;
      show(seen, i, step.observation);
      show(last, i, step.observation);
      if (!ended[i]) continue;
      any = true;
      progress.add(sums_[i]);
      sums_[i] = 0.0;
      show(seen, i, tasks_[i]->reset());
    }
    return any;
  }

  std::vector<float> seen, last;  // [landers, 8]
  std::vector<std::int64_t> actions;
  std::vector<double> rewards;
  std::unique_ptr<bool[]> ended, truncated;

 private:
  static void show(std::vector<float>& place, std::size_t i, const lander::Observation& seen) {
    std::copy(seen.begin(), seen.end(), place.begin() + static_cast<std::ptrdiff_t>(i * seen.size()));
  }

  std::vector<std::unique_ptr<lander::Lander>> tasks_;
  std::vector<double> sums_;
};

void train(const Wish& wish) {
  auto app = farfield::connect(wish.options);
  if (!app->wait(60.0)) std::printf("no version yet: flying at random until one comes. %s\n", app->trouble().c_str());
  auto episode = app->episode(wish.landers);
  Fleet fleet(wish.landers, wish.seed);
  Progress progress;
  double steps = 0.0;
  double printed = 0.0;
  while (steps < wish.steps && progress.episodes() < wish.episodes && !progress.reached(wish.target)) {
    episode.act(farfield::View(fleet.seen), fleet.actions.data(), wish.landers * sizeof(std::int64_t));
    const bool any = fleet.step(progress);
    episode.reward(fleet.rewards.data(), wish.landers);
    if (any) episode.restart(fleet.ended.get(), fleet.truncated.get(), {{"obs", farfield::View(fleet.last)}});
    steps += static_cast<double>(wish.landers);
    if (steps - printed < 20000) continue;
    printed = steps;
    progress.print(steps, app->counters());
  }
  progress.print(steps, app->counters());
  const farfield::Remaining left = app->close(30.0);
  if (!left.none()) std::printf("%llu payloads remain\n", static_cast<unsigned long long>(left.payloads));
}

}  // namespace

int main(int count, char** words) {
  try {
    train(read(count, words));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lander: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
