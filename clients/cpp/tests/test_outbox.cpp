// What waits, what is on its way, what is owned: on disk and in memory, without any network.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "outbox.hpp"
#include "waiting.hpp"

namespace farfield {
namespace {

using testing::Folder;

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 30;

struct Box {
  explicit Box(const std::string& folder = "", std::uint64_t quota = kPlenty, std::size_t memory = 1 << 20)
      : outbox(folder, quota, memory, tally) {}

  void push(const std::string& payload, std::uint64_t steps = 1) {
    outbox.push(payload, steps);
    outbox.store();
  }
  std::vector<std::string> take(std::uint64_t quota = kPlenty, std::uint64_t limit = kPlenty,
                                std::uint64_t most = 1 << 20) {
    std::vector<std::string> batch;
    outbox.take(batch, most, quota, limit);
    return batch;
  }

  Tally tally;
  Outbox outbox;
};

using Payloads = std::vector<std::string>;

class Outboxes : public ::testing::TestWithParam<bool> {
 protected:
  std::string folder() const { return GetParam() ? folder_.path() : ""; }
  Folder folder_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, Outboxes, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "on_disk" : "in_memory"; });

TEST_P(Outboxes, payloads_are_sent_in_order_and_leave_once_owned) {
  Box box(folder());
  for (const char* payload : {"one", "two", "three"}) box.push(payload);
  EXPECT_EQ(box.outbox.left().payloads, 3U);
  EXPECT_EQ(box.outbox.left().in_memory, GetParam() ? 0U : 3U);
  EXPECT_EQ(box.take(), (Payloads{"one", "two", "three"}));
  EXPECT_EQ(box.take(), Payloads{});
  box.outbox.own(2);
  EXPECT_EQ(box.outbox.left().payloads, 1U);
  box.outbox.own(2);
  EXPECT_EQ(box.outbox.left().payloads, 1U) << "the same number again owns nothing more";
  box.outbox.own(3);
  EXPECT_EQ(box.outbox.left().payloads, 0U);
  EXPECT_EQ(box.outbox.memory(), 0U);
  EXPECT_EQ(box.tally.owned, 3U);
}

TEST_P(Outboxes, what_was_not_owned_when_a_connection_broke_is_sent_again) {
  Box box(folder());
  for (const char* payload : {"one", "two", "three", "four"}) box.push(payload);
  box.take();
  box.outbox.own(1);
  box.push("five");
  box.outbox.rewind();
  EXPECT_EQ(box.take(), (Payloads{"two", "three", "four", "five"}));
  box.outbox.own(4);
  EXPECT_EQ(box.outbox.left().payloads, 0U);
  EXPECT_EQ(box.tally.sent, 8U);
  EXPECT_EQ(box.tally.owned, 5U);
}

TEST_P(Outboxes, a_refused_payload_leaves_and_is_counted) {
  Box box(folder());
  for (const char* payload : {"one", "bad", "three"}) box.push(payload);
  box.take();
  box.outbox.refuse(1);
  box.outbox.own(3);
  EXPECT_EQ(box.tally.refused, 1U);
  EXPECT_EQ(box.tally.owned, 2U);
  EXPECT_EQ(box.outbox.left().payloads, 0U);
}

TEST_P(Outboxes, no_more_is_on_its_way_than_the_gateway_allows) {
  Box box(folder());
  for (int i = 0; i < 10; ++i) box.push(std::string(100, static_cast<char>('a' + i)));
  EXPECT_EQ(box.take(250).size(), 2U);
  EXPECT_EQ(box.take(250).size(), 0U);
  box.outbox.own(1);
  EXPECT_EQ(box.take(250).size(), 1U);
  box.outbox.rewind();
  EXPECT_EQ(box.take(10).size(), 1U) << "one goes, whatever its size";
  EXPECT_EQ(box.take(10).size(), 0U);
}

TEST_P(Outboxes, a_message_holds_about_so_much) {
  Box box(folder());
  for (int i = 0; i < 10; ++i) box.push(std::string(100, 'x'));
  EXPECT_EQ(box.take(kPlenty, kPlenty, 350).size(), 3U);
  EXPECT_EQ(box.take(kPlenty, kPlenty, 50).size(), 1U) << "a large payload goes alone";
}

TEST_P(Outboxes, a_payload_over_the_limit_is_refused_here) {
  Box box(folder());
  box.push("one");
  box.push(std::string(100, 'x'));
  box.push("three");
  EXPECT_EQ(box.take(kPlenty, 50), (Payloads{"one", "three"}));
  box.outbox.own(2);
  EXPECT_EQ(box.tally.refused, 1U);
  EXPECT_EQ(box.outbox.left().payloads, 0U);
}

TEST_P(Outboxes, owning_more_than_was_sent_does_no_harm) {
  Box box(folder());
  box.push("one");
  box.take();
  box.outbox.own(1000);
  box.push("two");
  EXPECT_EQ(box.take(), Payloads{"two"});
  EXPECT_EQ(box.tally.owned, 1U);
}

TEST(Outbox, memory_is_bounded_and_what_does_not_fit_is_counted) {
  Box box("", kPlenty, 1000);
  for (int i = 0; i < 20; ++i) box.push(std::string(100, 'x'), 7);
  EXPECT_EQ(box.outbox.left().payloads, 10U);
  EXPECT_EQ(box.outbox.memory(), 1000U);
  EXPECT_EQ(box.tally.dropped_fragments + box.tally.dropped_credits, 10U);
  EXPECT_EQ(box.tally.dropped_steps, 70U);
  box.take();
  box.outbox.own(10);
  EXPECT_EQ(box.outbox.memory(), 0U);
  box.push("room again");
  EXPECT_EQ(box.outbox.left().payloads, 1U);
}

TEST(Outbox, a_full_spool_drops_and_counts) {
  Folder folder;
  Box box(folder.path(), 1000);
  for (int i = 0; i < 20; ++i) box.push(std::string(92, 'x'), 3);  // with their heads 100 bytes
  EXPECT_EQ(box.outbox.left().payloads, 10U);
  EXPECT_EQ(box.tally.dropped_fragments + box.tally.dropped_credits, 10U);
  EXPECT_EQ(box.tally.dropped_steps, 30U);
}

TEST(Outbox, what_the_disk_does_not_take_stays_in_memory_until_it_does) {
  Folder folder;
  const std::string blocked = folder.path() + "/runs";
  testing::write_file(blocked, "no folder");
  Box box(blocked + "/lander");
  box.push("one");
  box.push("two");
  EXPECT_EQ(box.outbox.left().in_memory, 2U);
  EXPECT_EQ(box.take(), (Payloads{"one", "two"}));
  box.outbox.own(1);
  box.outbox.rewind();
  std::filesystem::remove(blocked);
  box.outbox.store();
  EXPECT_EQ(box.outbox.left().in_memory, 0U);
  EXPECT_EQ(box.outbox.left().payloads, 1U);
  EXPECT_EQ(box.take(), Payloads{"two"});
}

TEST(Outbox, what_a_session_leaves_is_adopted_by_the_next_one) {
  Folder folder;
  {
    Box box(folder.path());
    box.push("one");
    box.push("two");
    box.take();
    box.outbox.own(1);
    box.outbox.close();
  }
  Box box(folder.path());
  box.push("three");
  box.outbox.adopt();
  EXPECT_EQ(box.tally.adopted, 2U) << "a file is given back whole; names make repetition harmless";
  EXPECT_EQ(box.take(), (Payloads{"one", "two", "three"}));
  box.outbox.own(3);
  box.outbox.close();
  EXPECT_EQ(folder.files(), 0U);
}

TEST(Outbox, after_shutting_everything_is_dropped) {
  Box box;
  box.outbox.shut();
  box.push("late", 4);
  EXPECT_EQ(box.outbox.left().payloads, 0U);
  EXPECT_EQ(box.tally.dropped_steps, 4U);
}

TEST(Outbox, many_threads_push_while_one_sends) {
  Folder folder;
  Box box(folder.path());
  constexpr int kThreads = 4;
  constexpr int kEach = 200;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&box, t] {
      for (int i = 0; i < kEach; ++i) box.outbox.push(std::to_string(t) + ":" + std::to_string(i), 1);
    });
  }
  Payloads came;
  std::uint64_t connection = 0;
  std::size_t kept = 0;
  while (kept < kThreads * kEach) {
    box.outbox.store();
    for (std::string& payload : box.take(200)) {
      came.push_back(payload);
      ++connection;
    }
    if (connection >= 50) {  // the last of them was lost with its connection
      box.outbox.own(connection - 1);
      came.pop_back();
      box.outbox.rewind();
      connection = 0;
    } else {
      box.outbox.own(connection);
    }
    kept = came.size();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(came.begin(), came.end()).size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(box.outbox.left().payloads, 0U);
}

}  // namespace
}  // namespace farfield
