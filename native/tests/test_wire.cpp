// The encoding: golden bytes come out as they went in, and damaged ones are refused.
#include "farfield/wire.hpp"

#include <random>

#include "golden.hpp"

using namespace farfield;

namespace {

std::vector<Column> columns_for(const Columns& arrays) {
  std::vector<Column> columns;
  for (const auto& [name, array] : arrays) columns.push_back({name, array.dtype, array.shape, array.bytes.data()});
  return columns;
}

}  // namespace

TEST(Wire, GoldenFragmentsAreWrittenByteForByte) {
  const std::string payload = read_file("fragment.bin");
  const auto [fragment, columns] = decode_fragment(payload);
  EXPECT_EQ(fragment.run, "cartpole");
  EXPECT_EQ(fragment.decision, 384u);
  EXPECT_EQ(find(columns, "obs").shape, (Shape{5, 1, 4}));
  EXPECT_EQ(find(columns, "final/index").shape, (Shape{0, 2}));
  EXPECT_EQ(encode(fragment, columns_for(columns)), payload);
  EXPECT_EQ(kind_of(payload), "Fragment");
}

TEST(Wire, GoldenCreditsAreWrittenByteForByte) {
  const std::string payload = read_file("credit.bin");
  EXPECT_EQ(encode(decode_credit(payload)), payload);
  EXPECT_EQ(kind_of(payload), "Credit");
  EXPECT_EQ(kind_of(read_file("heartbeat.bin")), "Heartbeat");
  EXPECT_EQ(kind_of("nonsense"), "");
}

TEST(Wire, GoldenAnnouncementsAreRead) {
  const Announcement found = decode_announcement(read_file("announcement.bin"));
  EXPECT_TRUE(found.full);
  EXPECT_EQ(found.version.number, 7u);
  EXPECT_EQ(found.tensors.size(), 2u);
  ASSERT_EQ(found.settled.size(), 2u);
  EXPECT_EQ(found.settled[0].first, "00112233445566778899aabbccddeeff");
  EXPECT_EQ(found.settled[0].second, 12u);
  EXPECT_EQ(found.version.spec.hash().size(), 64u);
}

TEST(Wire, ColumnsComeBack) {
  const Array array = Array::of<std::int16_t>({2, 1, 3}, {1, -2, 3, 4, 5, 6});
  const auto [name, came] = decode_column(encode_column({"x/é", array.dtype, array.shape, array.bytes.data()}));
  EXPECT_EQ(name, "x/é");
  EXPECT_EQ(came.shape, array.shape);
  EXPECT_EQ(came.bytes, array.bytes);
  const std::uint64_t huge[] = {0, ~0ull}, few[] = {3};
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { read_column("x", 11, huge, 2, ""); }));
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { read_column("x", 11, few, 1, "12345678"); }));
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { read_column("x", 1, few, 1, "\0\1\2"); }));
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { read_column("x", 13, few, 1, "123"); }));
}

TEST(Wire, WhatIsTooLargeIsRefused) {
  const Array array = Array::of<float>({4}, {1, 2, 3, 4});
  Fragment head;
  head.stream = std::string(32, '0');
  head.spec = std::string(64, '0');
  const std::vector<Column> columns{{"x", array.dtype, array.shape, array.bytes.data()}};
  EXPECT_TRUE(raises(Error::Kind::Spec, [&] { encode(head, columns, 50); }));
  EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { decode_announcement(read_file("announcement.bin"), 50); }));
}

TEST(Wire, CutAndDamagedPayloadsAreRefusedAndNeverCrash) {
  std::mt19937 random(1);
  for (const char* file : {"announcement.bin", "fragment.bin", "credit.bin"}) {
    const std::string payload = read_file(file);
    const auto read = [&](const std::string& bytes) {
      if (file[0] == 'a')
        decode_announcement(bytes);
      else if (file[0] == 'f')
        decode_fragment(bytes);
      else
        decode_credit(bytes);
    };
    read(payload);
    for (std::size_t cut = 0; cut < payload.size(); ++cut)
      EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { read(payload.substr(0, cut)); }));
    EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { read(payload + "x"); }));
    for (int round = 0; round < 20000; ++round) {
      std::string broken = payload;
      for (unsigned i = 0; i <= random() % 3; ++i) broken[random() % broken.size()] = static_cast<char>(random());
      try {
        read(broken);
      } catch (const Error&) {
      }
    }
  }
}
