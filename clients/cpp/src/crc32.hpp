// Bytes in, their CRC-32 out (the one of zlib and of PNG), eight bytes at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace farfield {

namespace crc {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1U) ? 0xEDB88320U : 0U);
    tables[0][byte] = rest;
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    for (std::size_t k = 1; k < 8; ++k) {
      const std::uint32_t rest = tables[k - 1][byte];
      tables[k][byte] = (rest >> 8) ^ tables[0][rest & 0xFFU];
    }
  }
  return tables;
}

inline constexpr Tables kTables = make();

}  // namespace crc

inline std::uint32_t crc32(std::string_view bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t left = bytes.size();
  std::uint32_t rest = 0xFFFFFFFFU;
  const auto& tables = crc::kTables;
  for (; left >= 8; left -= 8, at += 8) {
    rest ^= std::uint32_t{at[0]} | std::uint32_t{at[1]} << 8 | std::uint32_t{at[2]} << 16 | std::uint32_t{at[3]} << 24;
    rest = tables[7][rest & 0xFFU] ^ tables[6][(rest >> 8) & 0xFFU] ^ tables[5][(rest >> 16) & 0xFFU] ^
           tables[4][rest >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^ tables[0][at[7]];
  }
  for (; left > 0; --left, ++at) rest = (rest >> 8) ^ tables[0][(rest ^ *at) & 0xFFU];
  return ~rest;
}

}  // namespace farfield
