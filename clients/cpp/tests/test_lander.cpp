// The task is the task: what a lander does that rests, falls, burns and is flown well.
#include <gtest/gtest.h>

#include <cmath>

#include "lander.hpp"

namespace lander {
namespace {

struct Flight {
  double reward = 0.0;
  int steps = 0;
  Step last;
};

template <class Pilot>
Flight fly(Lander& task, Pilot&& pilot) {
  Flight flight;
  Observation seen = task.reset();
  do {
    flight.last = task.step(pilot(seen));
    seen = flight.last.observation;
    flight.reward += flight.last.reward;
    ++flight.steps;
  } while (!flight.last.terminated && !flight.last.truncated);
  return flight;
}

// Keeps the nose where it should point and the fall slow enough: no more than a pilot's two rules of thumb.
int fly_by_hand(const Observation& seen) {
  const float lean = std::clamp(0.5F * seen[0] + seen[2], -0.4F, 0.4F);
  float turn = 0.5F * (lean - seen[4]) - seen[5];
  float lift = 0.5F * (0.55F * std::abs(seen[0]) - seen[1]) - 0.5F * seen[3];
  if (seen[6] > 0.0F || seen[7] > 0.0F) {
    turn = 0.0F;
    lift = -0.5F * seen[3];
  }
  if (lift > std::abs(turn) && lift > 0.05F) return kMain;
  if (std::abs(turn) <= 0.05F) return kNothing;
  return turn < 0.0F ? kRight : kLeft;
}

TEST(TheLander, begins_high_in_the_middle_with_a_random_push) {
  Lander task(1);
  const Observation first = task.reset();
  const Observation second = task.reset();
  EXPECT_NEAR(first[0], 0.0F, 0.05F);
  EXPECT_NEAR(first[1], 1.4F, 0.05F);
  EXPECT_EQ(first[6] + first[7], 0.0F);
  EXPECT_NE(first[2], second[2]);
  Lander same(1);
  EXPECT_EQ(same.reset(), first) << "a seed is a seed";
}

TEST(TheLander, set_down_on_the_pad_it_comes_to_rest) {
  Lander task(2);
  task.reset();
  for (int i = 0; i < 20; ++i) task.step(kNothing);  // until the legs are spread
  task.place(0.1F);
  Step step;
  double reward = 0.0;
  for (int i = 0; i < kLimit && !step.terminated; ++i) {
    step = task.step(kNothing);
    reward += step.reward;
  }
  EXPECT_TRUE(step.terminated);
  EXPECT_EQ(step.reward, 100.0);
  EXPECT_GT(reward, 100.0) << "both legs touch, which is worth ten each";
  EXPECT_TRUE(task.touches(0) && task.touches(1));
  EXPECT_EQ(step.observation[6] + step.observation[7], 2.0F);
}

TEST(TheLander, dropped_it_crashes) {
  Lander task(3);
  for (int i = 0; i < 20; ++i) {
    const Flight flight = fly(task, [](const Observation&) { return kNothing; });
    EXPECT_TRUE(flight.last.terminated);
    EXPECT_EQ(flight.last.reward, -100.0);
    EXPECT_LT(flight.steps, 200);
    EXPECT_LT(flight.reward, 0.0);
  }
}

TEST(TheLander, leaving_the_screen_is_a_crash) {
  Lander task(4);
  const Flight flight = fly(task, [](const Observation& seen) { return seen[4] > -1.0F ? kRight : kMain; });
  EXPECT_TRUE(flight.last.terminated);
  EXPECT_EQ(flight.last.reward, -100.0);
}

TEST(TheLander, fuel_costs_and_engines_push_where_they_should) {
  Lander still(5);
  Lander main(5);
  Lander left(5);
  Lander right(5);
  for (Lander* each : {&still, &main, &left, &right}) each->reset();
  const auto worth = [](const Observation& seen) {
    return -100.0 * std::hypot(seen[0], seen[1]) - 100.0 * std::hypot(seen[2], seen[3]) - 100.0 * std::abs(seen[4]);
  };
  const auto fuel = [&](Lander& task, int action) {  // what is missing in the reward
    const double before = worth(task.step(kNothing).observation);
    const Step step = task.step(action);
    return worth(step.observation) - before - step.reward;
  };
  EXPECT_NEAR(fuel(still, kNothing), 0.0, 1e-4);
  EXPECT_NEAR(fuel(main, kMain), 0.3, 1e-4);
  EXPECT_NEAR(fuel(left, kLeft), 0.03, 1e-4);
  EXPECT_NEAR(fuel(right, kRight), 0.03, 1e-4);
  Step s;
  Step m;
  Step l;
  Step r;
  for (int i = 0; i < 5; ++i) {
    s = still.step(kNothing);
    m = main.step(kMain);
    l = left.step(kLeft);
    r = right.step(kRight);
  }
  EXPECT_GT(m.observation[3], s.observation[3]) << "up";
  EXPECT_GT(l.observation[5], s.observation[5]) << "the left engine turns it one way";
  EXPECT_LT(r.observation[5], s.observation[5]) << "the right one the other";
}

TEST(TheLander, hovering_is_cut_off_after_a_thousand_steps) {
  Lander task(6);
  const Flight flight = fly(task, [](const Observation& seen) {
    const float turn = -0.5F * seen[4] - seen[5] - 0.3F * seen[0] - 0.5F * seen[2];
    if (seen[3] < -0.05F * (seen[1] - 0.8F)) return int{kMain};
    return std::abs(turn) < 0.03F ? int{kNothing} : turn > 0.0F ? int{kLeft} : int{kRight};
  });
  EXPECT_LE(flight.steps, kLimit);
  EXPECT_EQ(flight.last.truncated, flight.steps == kLimit && !flight.last.terminated);
}

TEST(TheLander, flown_by_hand_it_lands) {
  Lander task(7);
  int landed = 0;
  double sum = 0.0;
  constexpr int kFlights = 50;
  for (int i = 0; i < kFlights; ++i) {
    const Flight flight = fly(task, fly_by_hand);
    landed += flight.last.reward == 100.0 ? 1 : 0;
    sum += flight.reward;
  }
  EXPECT_GE(landed, 40);
  EXPECT_GE(sum / kFlights, 200.0);
}

}  // namespace
}  // namespace lander
