// Bytes in, their SHA-256 out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace farfield {

using Digest = std::array<std::uint8_t, 32>;

/// The SHA-256 (FIPS 180-4) of some bytes.
Digest sha256(const void* data, std::size_t size);
inline Digest sha256(std::string_view text) { return sha256(text.data(), text.size()); }

/// Bytes as lower-case hexadecimal digits.
std::string hex(const void* data, std::size_t size);
inline std::string hex(const Digest& digest) { return hex(digest.data(), digest.size()); }
/// Lower-case hexadecimal digits as bytes; a SpecError names `what` unless there are exactly 2 * size of them.
std::string unhex(std::string_view digits, std::size_t size, const std::string& what);

}  // namespace farfield
