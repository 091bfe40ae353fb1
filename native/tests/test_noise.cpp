// Noise: the golden values of Python, word for word.
#include "farfield/noise.hpp"

#include "golden.hpp"

using namespace farfield;

namespace {
const char* const STREAM = "00112233445566778899aabbccddeeff";
}

TEST(Noise, KeysAndWordsAreThoseOfPython) {
  const auto key = noise_key(3, STREAM);
  EXPECT_EQ(key[0], 0x9440BEF7918529FFu);
  EXPECT_EQ(key[1], 0x552E4C26595EB254u);
  EXPECT_EQ(philox({0, 0, 0, 0}, key)[0], 0xD9939967E6FA6D51u);
}

TEST(Noise, DrawsWhatPythonDraws) {
  const Json& told = golden().at("noise");
  std::vector<Block> blocks;
  for (const Json& block : told.at("blocks").items())
    blocks.emplace_back(distribution_of(block.items()[0].text()), block.items()[1].natural());
  Noise noise(blocks, told.at("seed").natural(), told.at("stream").text());
  const Array expected = array_of(told.at("values"));
  std::vector<float> came(expected.count());
  noise.draw(told.at("first").natural(), came.size() / noise.width(), came.data());
  expect_near(came.data(), expected, 1e-6, "noise");
  noise.draw(told.at("first").natural() + 4, 1, came.data());  // one alone is as it was among others
  for (std::size_t i = 0; i < noise.width(); ++i) EXPECT_EQ(came[i], expected.as<float>()[4 * noise.width() + i]);
}

TEST(Noise, AStreamThatIsNoneIsRefused) {
  for (const std::string stream : {"", "main", "00112233445566778899AABBCCDDEEFF"})
    EXPECT_TRUE(raises(Error::Kind::Config, [&] { noise_key(1, stream); }));
  EXPECT_TRUE(raises(Error::Kind::Config, [] { distribution_of("cauchy"); }));
}
