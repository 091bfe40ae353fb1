// Files of frames: their bytes, torn ones, owners alive and dead, and the quota.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "crc32.hpp"
#include "farfield/wire.hpp"
#include "spool.hpp"
#include "waiting.hpp"

namespace farfield {
namespace {

using testing::Folder;
using testing::read_file;
using testing::write_file;

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 30;

std::string frame(const std::string& payload) {
  std::string bytes;
  for (const std::uint32_t number : {static_cast<std::uint32_t>(payload.size()), crc32(payload)}) {
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(number >> (8 * i));
  }
  return bytes + payload;
}

std::vector<std::string> drain(Spool& spool) {
  std::vector<std::string> found;
  std::string payload;
  Spool::Origin origin;
  while (spool.next(payload, origin)) {
    found.push_back(payload);
    spool.own(origin);
  }
  return found;
}

std::string only_file(const Folder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) return entry.path().string();
  return "";
}

TEST(Spool, crc_is_that_of_zlib) {
  EXPECT_EQ(crc32("123456789"), 0xCBF43926U);
  EXPECT_EQ(crc32(""), 0U);
  EXPECT_EQ(crc32("a longer text, of more than eight bytes"), 0x9630C132U);
}

TEST(Spool, golden_file_is_read_and_written_byte_for_byte) {
  const std::string golden = read_file(GOLDEN_SPOOL);
  ASSERT_FALSE(golden.empty());
  Folder folder;
  write_file(folder.path() + "/0123456789abcdef.spool", golden);
  Spool spool(folder.path(), kPlenty);
  EXPECT_EQ(spool.adopt(), 1U);
  EXPECT_EQ(spool.frames(), 2U);
  const auto payloads = drain(spool);
  ASSERT_EQ(payloads.size(), 2U);
  EXPECT_EQ(kind_of(payloads[0]), "Fragment");
  EXPECT_EQ(kind_of(payloads[1]), "Credit");
  EXPECT_EQ(folder.files(), 0U) << "an adopted file is removed once it is owned";
  for (const std::string& payload : payloads) ASSERT_EQ(spool.write(payload), Spool::Kept::kYes);
  EXPECT_EQ(read_file(only_file(folder)), golden);
}

TEST(Spool, what_is_written_comes_out_in_order_and_the_file_is_emptied) {
  Folder folder;
  Spool spool(folder.path(), kPlenty);
  for (const char* payload : {"one", "two", "three"}) ASSERT_EQ(spool.write(payload), Spool::Kept::kYes);
  EXPECT_EQ(read_file(only_file(folder)), frame("one") + frame("two") + frame("three"));
  EXPECT_EQ(drain(spool), (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_EQ(read_file(only_file(folder)), "");
  EXPECT_EQ(spool.bytes(), 0U);
  spool.close();
  EXPECT_EQ(folder.files(), 0U) << "a clean end leaves nothing";
}

TEST(Spool, what_is_not_owned_is_given_again) {
  Folder folder;
  Spool spool(folder.path(), kPlenty);
  for (const char* payload : {"one", "two", "three"}) spool.write(payload);
  std::string payload;
  Spool::Origin first;
  Spool::Origin second;
  ASSERT_TRUE(spool.next(payload, first));
  ASSERT_TRUE(spool.next(payload, second));
  spool.own(first);
  spool.rewind();
  EXPECT_EQ(drain(spool), (std::vector<std::string>{"two", "three"}));
}

TEST(Spool, a_torn_frame_ends_a_file_and_is_counted) {
  const std::string whole = frame("one") + frame("two") + frame("three");
  for (std::size_t cut = frame("one").size() + 1; cut < whole.size(); ++cut) {
    Folder folder;
    write_file(folder.path() + "/0123456789abcdef.spool", whole.substr(0, cut));
    Spool spool(folder.path(), kPlenty);
    spool.adopt();
    const auto found = drain(spool);
    const std::size_t expected = cut < frame("one").size() + frame("two").size() ? 1 : 2;
    ASSERT_EQ(found.size(), expected) << "cut after " << cut << " bytes";
    const bool between = cut == frame("one").size() + frame("two").size();
    EXPECT_EQ(spool.damaged(), between ? 0U : 1U);
    EXPECT_EQ(spool.lost_bytes() > 0, !between);
    EXPECT_EQ(folder.files(), 0U);
  }
}

TEST(Spool, a_damaged_byte_ends_a_file_wherever_it_is) {
  const std::string whole = frame("one") + frame("two") + frame("three");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    Folder folder;
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    write_file(folder.path() + "/0123456789abcdef.spool", damaged);
    Spool spool(folder.path(), kPlenty);
    spool.adopt();
    const auto found = drain(spool);
    const std::size_t expected = at < frame("one").size() ? 0 : at < 2 * frame("one").size() ? 1 : 2;
    ASSERT_EQ(found.size(), expected) << "byte " << at;
    EXPECT_EQ(spool.damaged(), 1U);
  }
}

TEST(Spool, a_living_owner_keeps_its_file) {
  Folder folder;
  Spool first(folder.path(), kPlenty);
  first.write("mine");
  Spool second(folder.path(), kPlenty);
  EXPECT_EQ(second.adopt(), 0U);
  second.write("other");
  EXPECT_EQ(drain(second), std::vector<std::string>{"other"});
  EXPECT_EQ(drain(first), std::vector<std::string>{"mine"});
}

TEST(Spool, files_of_the_dead_come_first_and_are_removed) {
  Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    Spool dying(folder.path(), kPlenty);
    dying.write("of a dead process");
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(folder.files(), 1U);
  Spool spool(folder.path(), kPlenty);
  spool.write("of a living one");
  EXPECT_EQ(spool.adopt(), 1U);
  EXPECT_EQ(drain(spool), (std::vector<std::string>{"of a dead process", "of a living one"}));
  spool.close();
  EXPECT_EQ(folder.files(), 0U);
}

TEST(Spool, an_empty_file_of_the_dead_is_removed) {
  Folder folder;
  write_file(folder.path() + "/0123456789abcdef.spool", "");
  Spool spool(folder.path(), kPlenty);
  EXPECT_EQ(spool.adopt(), 0U);
  EXPECT_EQ(folder.files(), 0U);
}

TEST(Spool, a_file_of_another_kind_is_left_alone) {
  Folder folder;
  write_file(folder.path() + "/notes.txt", "do not touch");
  Spool spool(folder.path(), kPlenty);
  EXPECT_EQ(spool.adopt(), 0U);
  EXPECT_EQ(read_file(folder.path() + "/notes.txt"), "do not touch");
}

TEST(Spool, the_quota_counts_what_others_keep_in_the_folder) {
  Folder folder;
  Spool first(folder.path(), 1000);
  EXPECT_EQ(first.write(std::string(600, 'a')), Spool::Kept::kYes);
  EXPECT_EQ(first.write(std::string(600, 'b')), Spool::Kept::kQuota);
  Spool second(folder.path(), 1000);
  EXPECT_EQ(second.write(std::string(600, 'c')), Spool::Kept::kQuota);
  EXPECT_EQ(second.write(std::string(100, 'd')), Spool::Kept::kYes);
  EXPECT_EQ(drain(first).size(), 1U);
  EXPECT_EQ(first.write(std::string(600, 'e')), Spool::Kept::kYes) << "what is owned takes no room";
}

TEST(Spool, a_long_file_is_followed_by_another_and_goes_once_it_is_owned) {
  Folder folder;
  Spool spool(folder.path(), 1 << 20);  // files of 128 KiB
  const std::string payload(30000, 'x');
  for (int i = 0; i < 20; ++i) ASSERT_EQ(spool.write(payload), Spool::Kept::kYes);
  EXPECT_EQ(folder.files(), 4U);
  std::string found;
  Spool::Origin origin;
  for (int i = 0; i < 19; ++i) {
    ASSERT_TRUE(spool.next(found, origin));
    spool.own(origin);
  }
  EXPECT_EQ(folder.files(), 1U) << "one payload on its way does not keep all that went before";
}

TEST(Spool, a_full_disk_keeps_whole_frames_only) {
  Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    Spool spool(folder.path(), kPlenty);
    const rlimit limit{100, 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    int code = 0;
    if (spool.write(std::string(60, 'a')) != Spool::Kept::kYes) code = 1;
    if (spool.write(std::string(60, 'b')) != Spool::Kept::kNoRoom) code = 2;
    if (spool.write(std::string(20, 'c')) != Spool::Kept::kYes) code = 3;
    if (drain(spool).size() != 2) code = 4;
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Spool, a_folder_that_cannot_be_is_no_room) {
  Folder folder;
  write_file(folder.path() + "/file", "");
  Spool spool(folder.path() + "/file/run", kPlenty);
  EXPECT_EQ(spool.write("x"), Spool::Kept::kNoRoom);
  EXPECT_EQ(Spool("", kPlenty).write("x"), Spool::Kept::kOff);
}

}  // namespace
}  // namespace farfield
