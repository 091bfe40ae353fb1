// The loops, each kind that this machine runs against the written formula.
#include <random>
#include <vector>

#include "golden.hpp"
#include "kernels.hpp"

using namespace farfield;

namespace {

std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> draw(-1, 1);
  std::vector<float> made(count);
  for (float& one : made) one = draw(random);
  return made;
}

}  // namespace

TEST(Kernels, ProductsOfAnyShape) {
  for (auto k = runnable_kernels(); *k; ++k)
    for (const std::size_t rows : {1, 2, 3, 4, 5, 8, 9})
      for (const std::size_t in : {0, 1, 3, 8, 13, 64})
        for (const std::size_t out : {1, 3, 4, 15, 16, 17, 33, 48, 63, 64, 65, 100, 130, 200}) {
          const auto x = numbers(rows * in, 1), plain = numbers(in * out, 2), bias = numbers(padded(out), 3);
          std::vector<float> kernel(std::max<std::size_t>(in, 1) * padded(out)), y(rows * out + 1, 7.0f);
          for (std::size_t i = 0; i < in; ++i)
            for (std::size_t j = 0; j < out; ++j) kernel[i * padded(out) + j] = plain[i * out + j];
          (*k)->dense(x.data(), rows, in, kernel.data(), bias.data(), out, y.data());
          for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t j = 0; j < out; ++j) {
              double sum = bias[j];
              for (std::size_t i = 0; i < in; ++i) sum += double(x[r * in + i]) * plain[i * out + j];
              ASSERT_NEAR(y[r * out + j], sum, 2e-5) << (*k)->name << " " << rows << " " << in << " " << out;
            }
          ASSERT_EQ(y.back(), 7.0f);
        }
}

TEST(Kernels, SquashedNumbersAreExact) {
  std::vector<float> x, y;
  for (double value = -12; value <= 12; value += 1e-3) x.push_back(static_cast<float>(value));
  for (const float value : {0.0f, -0.0f, 1e-30f, -1e-8f, 50.0f, -1e30f, INFINITY, -INFINITY}) x.push_back(value);
  y.resize(x.size());
  for (auto k = runnable_kernels(); *k; ++k) {
    (*k)->tanh(x.data(), y.data(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(y[i], std::tanh(double(x[i])), 5e-7 * std::abs(std::tanh(double(x[i])))) << (*k)->name << " " << x[i];
      ASSERT_LE(std::abs(y[i]), 1.0f);
    }
    (*k)->sigmoid(x.data(), y.data(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], 1 / (1 + std::exp(-double(x[i]))), 3e-7);
  }
}

TEST(Kernels, WhatIsNotFiniteIsFound) {
  for (auto k = runnable_kernels(); *k; ++k)
    for (std::size_t count = 0; count < 70; ++count) {
      std::vector<float> x(count, 3e38f);
      EXPECT_TRUE((*k)->finite(x.data(), count));
      for (std::size_t at = 0; at < count; ++at)
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          x[at] = bad;
          EXPECT_FALSE((*k)->finite(x.data(), count));
          x[at] = 0;
        }
    }
}

TEST(Kernels, NormalisedNumbersAreClipped) {
  for (auto k = runnable_kernels(); *k; ++k)
    for (const std::size_t count : {1, 3, 8, 17, 40}) {
      const auto x = numbers(count, 1);
      auto mean = numbers(padded(count), 2), deviation = numbers(padded(count), 3);
      for (float& one : deviation) one = 0.1f + std::abs(one);
      std::vector<float> y(count);
      (*k)->normalise(x.data(), mean.data(), deviation.data(), 1.5f, y.data(), count);
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_FLOAT_EQ(y[i], std::min(1.5f, std::max(-1.5f, (x[i] - mean[i]) / deviation[i])));
    }
}

TEST(Kernels, NoiseIsShapedAsItIsDefined) {
  std::mt19937_64 random(5);
  std::vector<std::uint64_t> raw{0, ~0ull, 1ull << 63, 1ull << 12, (1ull << 63) - 1};
  while (raw.size() < 203) raw.push_back(random());
  std::vector<float> gumbel(raw.size()), logistic(raw.size());
  for (auto k = runnable_kernels(); *k; ++k) {
    (*k)->finish_gumbel(raw.data(), gumbel.data(), raw.size());
    (*k)->finish_logistic(raw.data(), logistic.data(), raw.size());
    for (std::size_t i = 0; i < raw.size(); ++i) {
      const double u = (double(raw[i] >> 12) + 0.5) * 0x1p-52;
      ASSERT_FLOAT_EQ(gumbel[i], float(-std::log(-std::log(u)))) << (*k)->name << " " << raw[i];
      ASSERT_FLOAT_EQ(logistic[i], float(std::log(u / (1 - u)))) << (*k)->name << " " << raw[i];
    }
  }
}
