// The C header, used by a program in C.
#include <gtest/gtest.h>

#include "fake_gateway.hpp"
#include "farfield/farfield.h"
#include "nets.hpp"
#include "waiting.hpp"

extern "C" int play_in_c(const char* address, const char* spool);

namespace farfield {
namespace {

TEST(CApi, a_program_in_c_acts_rewards_and_ends) {
  testing::FakeGateway gateway;
  testing::Folder folder;
  gateway.publish(0, testing::announce(testing::make_net(0, 16)));
  EXPECT_EQ(play_in_c(gateway.address().c_str(), folder.path().c_str()), 0);
  EXPECT_GE(gateway.distinct().size(), 3U);
}

TEST(CApi, a_refusal_is_a_code_and_a_text) {
  testing::FakeGateway gateway;
  gateway.change([](auto& ways) {
    ways.refuse_code = 16;
    ways.refuse_text = "unknown token";
  });
  ff_options* options = ff_options_new();
  ff_set(options, "address", gateway.address().c_str());
  ff_set(options, "run", "lander");
  ff_set(options, "spec", testing::lander_spec().write().c_str());
  ff_set(options, "spool", "");
  ff_session* app = nullptr;
  EXPECT_EQ(ff_connect(options, &app), FF_CONFIG);
  EXPECT_EQ(app, nullptr);
  EXPECT_NE(std::string(ff_last_error()).find("unknown token"), std::string::npos);
  ff_options_free(options);
}

TEST(CApi, nothing_is_harmed_by_null) {
  ff_options_free(nullptr);
  ff_session_free(nullptr);
  ff_episode_free(nullptr);
  EXPECT_EQ(ff_version(nullptr), -1);
  EXPECT_EQ(ff_prometheus(nullptr, nullptr, 0), 0U);
  EXPECT_EQ(ff_connect(nullptr, nullptr), FF_ARGUMENT);
  EXPECT_EQ(ff_wait(nullptr, 0.0), FF_ARGUMENT);
  EXPECT_EQ(ff_end(nullptr, 0, nullptr, 0), FF_ARGUMENT);
  EXPECT_STREQ(ff_library_version(), "0.1.0");
}

}  // namespace
}  // namespace farfield
