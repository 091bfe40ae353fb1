// Fragments, credits and columns in, bytes out: protobuf by hand, as codec.py writes it.
#include <cstring>

#include "farfield/error.hpp"
#include "farfield/sha256.hpp"
#include "farfield/wire.hpp"
#include "wire.hpp"

namespace farfield {
namespace {

using namespace wire;

constexpr std::size_t HEAD = 5;  // the field `length` with its tag

void varint(std::string& out, std::uint64_t value) {
  while (value > 0x7F) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void number(std::string& out, int field, std::uint64_t value) {  // protobuf leaves out what is zero
  if (!value) return;
  varint(out, static_cast<std::uint64_t>(field) << 3);
  varint(out, value);
}

void bytes(std::string& out, int field, std::string_view value) {
  if (value.empty()) return;
  varint(out, static_cast<std::uint64_t>(field) << 3 | 2);
  varint(out, value.size());
  out += value;
}

void fixed32(char* to, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<char>(value >> (8 * i));
}

/// All of a column that comes before its data, with the tag of its data.
std::string opening(const Column& column, std::size_t size) {
  std::string out, shape;
  bytes(out, 1, column.name);
  number(out, 2, static_cast<std::uint64_t>(column.dtype));
  for (const std::size_t side : column.shape) varint(shape, side);
  bytes(out, 3, shape);
  if (size) {
    varint(out, 4 << 3 | 2);
    varint(out, size);
  }
  return out;
}

std::size_t bytes_of(const Column& column) { return count_of(column.shape) * size_of(column.dtype); }

std::string begin(Kind kind) {
  std::string out(HEAD, '\0');
  number(out, 2, SCHEMA);
  number(out, 3, kind);
  return out;
}

std::string finish(std::string out) {
  out[0] = 0x0D;  // field 1, four bytes
  fixed32(&out[1], static_cast<std::uint32_t>(out.size()));
  return out;
}

}  // namespace

std::string encode(const Fragment& fragment, const std::vector<Column>& columns, std::size_t limit) {
  std::string out = begin(FRAGMENT);
  bytes(out, 4, fragment.run);
  bytes(out, 5, unhex(fragment.stream, 16, "stream"));
  number(out, 6, fragment.seq);
  number(out, 7, fragment.version);
  number(out, 8, fragment.attempt);
  bytes(out, 9, unhex(fragment.spec, 32, "spec"));
  number(out, 10, fragment.decision);
  bytes(out, 11, fragment.policy);
  bytes(out, 12, fragment.actor);
  bytes(out, 13, fragment.source);
  std::size_t room = out.size();
  for (const Column& column : columns) room += bytes_of(column) + column.name.size() + 10 * column.shape.size() + 40;
  out.reserve(room);
  for (const Column& column : columns) {
    const std::size_t size = bytes_of(column);
    const std::string head = opening(column, size);
    varint(out, 15 << 3 | 2);
    varint(out, head.size() + size);
    out += head;
    if (size) out.append(static_cast<const char*>(column.data), size);
  }
  if (out.size() > limit)
    spec_error("Fragment of " + std::to_string(out.size()) + " bytes, but the limit is " + std::to_string(limit) +
               ": use fewer steps or lanes in one fragment");
  return finish(std::move(out));
}

std::string encode(const Credit& credit) {
  std::string out = begin(CREDIT);
  bytes(out, 4, credit.run);
  bytes(out, 5, unhex(credit.stream, 16, "stream"));
  number(out, 6, credit.n);
  std::uint64_t bits;
  std::memcpy(&bits, &credit.reward, sizeof bits);
  if (bits) {
    char raw[9] = {7 << 3 | 1};
    fixed32(raw + 1, static_cast<std::uint32_t>(bits));
    fixed32(raw + 5, static_cast<std::uint32_t>(bits >> 32));
    out.append(raw, sizeof raw);
  }
  number(out, 8, credit.set ? 2 : 1);
  bytes(out, 9, credit.id);
  return finish(std::move(out));
}

std::string kind_of(std::string_view payload) {
  if (payload.size() < 9 || payload[5] != 0x10 || payload[7] != 0x18) return "";
  const auto kind = static_cast<unsigned char>(payload[8]);
  return kind >= 1 && kind <= 5 ? KIND_NAMES[kind] : "";
}

std::string encode_column(const Column& column) {
  const std::size_t size = bytes_of(column);
  std::string out = opening(column, size);
  if (size) out.append(static_cast<const char*>(column.data), size);
  return out;
}

}  // namespace farfield
