// JSON and hashes: what goes in comes out, and what is none is refused.
#include <random>

#include "farfield/sha256.hpp"
#include "golden.hpp"

using namespace farfield;

TEST(Json, ValuesComeBackAsTheyWere) {
  const std::string text =
      R"({"a":[1,-2,3.5,"x\"\\\n\u0001é😀",true,false,null],"b":{"c":{}},"n":18446744073709551615})";
  EXPECT_EQ(Json::parse(text).write(), text);
  EXPECT_EQ(Json::parse(" { \"b\" : 1 , \"a\" : [ ] } ").write(), R"({"a":[],"b":1})");
  EXPECT_EQ(Json::parse(R"({"a":1,"b":2,"a":3})").write(), R"({"a":3,"b":2})");
  EXPECT_EQ(Json::parse(R"("\ud83d\ude00\u00e9")").text(), "😀é");
}

TEST(Json, NumbersAreWrittenAsPythonDoes) {
  const std::pair<double, const char*> cases[] = {{1.0, "1.0"},
                                                  {0.1, "0.1"},
                                                  {1e-5, "0.00001"},
                                                  {1e-7, "1e-7"},
                                                  {2.5e-6, "2.5e-6"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e16, "1e16"},
                                                  {1.5e17, "1.5e17"},
                                                  {5e-324, "5e-324"},
                                                  {-0.0, "-0.0"},
                                                  {123456.789, "123456.789"},
                                                  {1.7976931348623157e308, "1.7976931348623157e308"},
                                                  {1.0 / 3, "0.3333333333333333"},
                                                  {INFINITY, "\"Infinity\""}};
  for (const auto& [value, text] : cases) EXPECT_EQ(Json(value).write(), text);
  EXPECT_EQ(Json::parse("\"-Infinity\"").real(), -INFINITY);
  EXPECT_EQ(Json::parse("1e2").real(), 100.0);
  EXPECT_EQ(Json::parse("-9223372036854775808").integer(), INT64_MIN);
}

TEST(Json, WhatIsNoneIsRefused) {
  for (const char* text : {"",
                           "{",
                           "[1,]",
                           "{\"a\":}",
                           "{a:1}",
                           "01",
                           "1.",
                           "1e",
                           "nul",
                           "\"\\x\"",
                           "\"\\ud800\"",
                           "\"a",
                           "[1] 2",
                           "{\"a\" 1}",
                           "\x80",
                           "\"\xc0\x80\"",
                           "\"\xed\xa0\x80\"",
                           "1e999",
                           "--1",
                           "\"\n\""})
    EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { Json::parse(text); })) << text;
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [] { Json::parse(std::string(100000, '[')); }));
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [] { Json::parse("[1]").at("a"); }));
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [] { Json::parse("18446744073709551615").integer(); }));
}

TEST(Json, DamagedManifestsNeverCrash) {
  const std::string text = golden().at("tracks").items()[1].at("version").write();
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string broken = text;
    for (unsigned i = 0; i <= random() % 4; ++i) broken[random() % broken.size()] = static_cast<char>(random());
    if (round % 3 == 0) broken.resize(random() % broken.size());
    try {
      Version::parse(broken);
    } catch (const Error&) {
    }
  }
}

TEST(Sha256, KnownHashes) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DigitsAreBytes) {
  EXPECT_EQ(unhex("00ff10", 3, "x"), std::string("\0\xff\x10", 3));
  for (const char* wrong : {"00ff1", "00FF10", "00ff1g", "00ff1000"})
    EXPECT_TRUE(raises(Error::Kind::Spec, [&] { unhex(wrong, 3, "x"); })) << wrong;
}
