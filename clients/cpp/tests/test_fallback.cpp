// Actions without a policy: as declared, or random among what is allowed.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "fallback.hpp"

namespace farfield {
namespace {

std::map<std::int64_t, int> chosen(Chooser& chooser, const std::vector<View>& seen, int times = 1000) {
  std::map<std::int64_t, int> counts;
  std::int64_t action = -1;
  void* actions[] = {&action};
  for (int i = 0; i < times; ++i) {
    chooser.choose(seen.data(), actions);
    ++counts[action];
  }
  return counts;
}

Spec spec_of(Field action, bool masked = false) {
  Spec spec;
  spec.observations = {box("obs", {2})};
  if (masked) spec.observations.push_back(mask("mask", action.choices()));
  spec.actions = {std::move(action)};
  return spec;
}

TEST(Fallback, every_action_is_drawn_about_equally_often) {
  const Spec spec = spec_of(discrete("action", 4));
  Chooser chooser(spec, {}, 0, 1);
  const auto counts = chosen(chooser, {View()}, 4000);
  ASSERT_EQ(counts.size(), 4U);
  for (const auto& [action, count] : counts) EXPECT_NEAR(count, 1000, 150) << action;
}

TEST(Fallback, what_is_masked_is_never_drawn_in_whatever_type_the_mask_comes) {
  const Spec spec = spec_of(discrete("action", 4, "mask"), true);
  Chooser chooser(spec, {}, 0, 1);
  const std::uint8_t bytes[] = {0, 1, 0, 1};
  const float floats[] = {-0.0F, 1.0F, 0.0F, 0.5F};
  const std::int64_t words[] = {0, 1, 0, 1 << 16};
  for (const View& view : {View(bytes, 4), View(floats, 4), View(words, 4)}) {
    const auto counts = chosen(chooser, {View(), view});
    EXPECT_EQ(counts.size(), 2U);
    EXPECT_EQ(counts.count(0) + counts.count(2), 0U);
  }
}

TEST(Fallback, a_mask_that_allows_nothing_forbids_nothing) {
  const Spec spec = spec_of(discrete("action", 4, "mask"), true);
  Chooser chooser(spec, {}, 0, 1);
  const std::uint8_t none[] = {0, 0, 0, 0};
  EXPECT_EQ(chosen(chooser, {View(), View(none, 4)}).size(), 4U);
}

TEST(Fallback, the_declared_action_is_taken_where_it_is_allowed) {
  const Spec spec = spec_of(discrete("action", 4, "mask"), true);
  Chooser chooser(spec, {{2.0}}, 0, 1);
  const std::uint8_t all[] = {1, 1, 1, 1};
  const std::uint8_t others[] = {1, 1, 0, 0};
  EXPECT_EQ(chosen(chooser, {View(), View(all, 4)}).size(), 1U);
  const auto counts = chosen(chooser, {View(), View(others, 4)});
  EXPECT_EQ(counts.size(), 2U);
  EXPECT_EQ(counts.count(2), 0U);
}

TEST(Fallback, several_choices_have_each_its_part_of_the_mask) {
  const Spec spec = spec_of(multi_discrete("action", {2, 3}, "mask"), true);
  Chooser chooser(spec, {}, 2, 1);
  const std::uint8_t allowed[] = {1, 0, 0, 0, 1, /* the second lane */ 0, 1, 1, 0, 0};
  const std::vector<View> seen = {View(), View(allowed, 10)};
  std::int64_t action[4];
  void* actions[] = {action};
  for (int i = 0; i < 100; ++i) {
    chooser.choose(seen.data(), actions);
    EXPECT_EQ(action[0], 0);
    EXPECT_EQ(action[1], 2);
    EXPECT_EQ(action[2], 1);
    EXPECT_EQ(action[3], 0);
  }
}

TEST(Fallback, numbers_stay_within_their_bounds) {
  const Spec spec = spec_of(box("action", {2}, {-2.0, 0.0}, {-1.0, 5.0}));
  Chooser chooser(spec, {}, 0, 1);
  float action[2];
  void* actions[] = {action};
  for (int i = 0; i < 1000; ++i) {
    chooser.choose(nullptr, actions);
    EXPECT_TRUE(action[0] >= -2.0F && action[0] <= -1.0F);
    EXPECT_TRUE(action[1] >= 0.0F && action[1] <= 5.0F);
  }
}

TEST(Fallback, a_declared_action_that_does_not_fit_is_refused_with_the_reason) {
  const Spec spec = spec_of(discrete("action", 4));
  for (const std::vector<double>& wrong : {std::vector<double>{4}, {-1}, {1.5}, {1, 2}}) {
    EXPECT_THROW(check(spec, {wrong}), Error);
  }
  check(spec, {{3}});
  check(spec_of(box("action", {2})), {{0.5, -7.0}});
}

}  // namespace
}  // namespace farfield
