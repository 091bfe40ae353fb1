// Bytes in, announcements, fragments, credits and columns out; every length is checked before it is believed.
#include <algorithm>
#include <cstring>
#include <set>

#include "farfield/error.hpp"
#include "farfield/sha256.hpp"
#include "farfield/wire.hpp"
#include "wire.hpp"

namespace farfield {
namespace {

using namespace wire;

constexpr std::size_t AXES = 32;  // NumPy allows 64
const char* const CURE = "install the same farfield on both sides";

/// Reads the fields of one message; every length is checked before it is believed.
class Reader {
 public:
  Reader(std::string_view data, const char* what) : data_(data), what_(what) {}

  int field = 0;
  int type = 0;

  [[noreturn]] void fail(const std::string& why) const {
    corrupt_error(std::string(what_) + " of " + std::to_string(data_.size()) +
                  " bytes is no farfield/v1 message: " + why);
  }

  bool next() {
    if (at_ == data_.size()) return false;
    const std::uint64_t tag = varint();
    if (tag >> 3 == 0 || tag >> 32) fail("a field without a number");
    field = static_cast<int>(tag >> 3);
    type = static_cast<int>(tag & 7);
    return true;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == data_.size()) fail("it ends inside a number");
      const std::uint8_t byte = static_cast<std::uint8_t>(data_[at_++]);
      if (shift == 63 && byte > 1) fail("a number of more than 64 bits");
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail("a number of more than 64 bits");
  }

  bool empty() const { return at_ == data_.size(); }

  std::uint64_t natural() {
    if (type != 0) fail("field " + std::to_string(field) + " is not a number");
    return varint();
  }

  std::string_view take(std::size_t size) {
    if (size > data_.size() - at_) fail("it ends inside a field");
    at_ += size;
    return data_.substr(at_ - size, size);
  }

  std::string_view bytes() {
    if (type != 2) fail("field " + std::to_string(field) + " is not text or bytes");
    return take(static_cast<std::size_t>(std::min<std::uint64_t>(varint(), SIZE_MAX)));
  }

  std::string_view text() {
    const std::string_view found = bytes();
    for (std::size_t at = 0; at < found.size();) {
      const std::size_t step = utf8_step(found.substr(at));
      if (!step) fail("field " + std::to_string(field) + " is not UTF-8");
      at += step;
    }
    return found;
  }

  std::uint64_t fixed(int size) {
    if (type != (size == 4 ? 5 : 1)) fail("field " + std::to_string(field) + " is not fixed");
    const std::string_view raw = take(static_cast<std::size_t>(size));
    std::uint64_t value = 0;
    for (int i = 0; i < size; ++i) value |= std::uint64_t{static_cast<std::uint8_t>(raw[i])} << (8 * i);
    return value;
  }

  /// Goes past a field that a newer writer added.
  void skip() {
    switch (type) {
      case 0: varint(); return;
      case 1: take(8); return;
      case 2: bytes(); return;
      case 5: take(4); return;
      default: fail("a group, which proto3 does not have");
    }
  }

 private:
  std::string_view data_;
  const char* what_;
  std::size_t at_ = 0;
};

/// Checks the three fields that every payload begins with, and gives a reader of all of them.
Reader opened(std::string_view payload, Kind kind, std::size_t limit) {
  const char* what = KIND_NAMES[kind];
  const auto label = [&] { return std::string(what) + " of " + std::to_string(payload.size()) + " bytes"; };
  if (payload.size() > limit) corrupt_error(label() + " is over the limit of " + std::to_string(limit));
  std::uint64_t length = 0, schema = 0, came = 0;
  Reader reader(payload, what);
  while (reader.next()) {
    switch (reader.field) {
      case 1: length = reader.fixed(4); break;
      case 2: schema = reader.natural(); break;
      case 3: came = reader.natural(); break;
      default: reader.skip();
    }
  }
  if (length != payload.size() || !length)
    corrupt_error(label() + " says it has " + std::to_string(length) + ": it was cut, or is something else");
  if (schema != SCHEMA)
    spec_error(label() + ": expected schema " + std::to_string(SCHEMA) + ", came " + std::to_string(schema) + ": " +
               CURE);
  if (came != kind)
    corrupt_error(label() + ": expected kind " + std::to_string(kind) + ", came " + std::to_string(came));
  return Reader(payload, what);
}

std::string digits(std::string_view raw, std::size_t size, const char* what) {
  if (raw.size() != size)
    corrupt_error(std::string(what) + " of " + std::to_string(raw.size()) + " bytes, expected " + std::to_string(size) +
                  ": its producer does not write farfield/v1");
  return hex(raw.data(), raw.size());
}

void check_names(const Columns& columns) {
  std::set<std::string_view> names;
  for (const auto& [name, array] : columns)
    if (!names.insert(name).second) corrupt_error("two columns have the name '" + name + "'");
}

}  // namespace

Array read_column(const std::string& name, int dtype, const std::uint64_t* shape, std::size_t axes,
                  std::string_view data) {
  const std::string label = "column '" + name + "'";
  if (dtype < 1 || dtype > static_cast<int>(Dtype::Float64))
    corrupt_error(label + ": dtype number " + std::to_string(dtype) + " is unknown: " + CURE);
  const std::size_t each = size_of(static_cast<Dtype>(dtype));
  std::size_t most = each;  // an empty axis must not hide what others claim
  bool fits = axes <= AXES, empty = false;
  for (std::size_t i = 0; fits && i < axes; ++i) {
    const std::uint64_t side = shape[i] ? shape[i] : 1;
    empty = empty || !shape[i];
    fits = side <= (SIZE_MAX >> 1) / most;
    if (fits) most *= static_cast<std::size_t>(side);
  }
  if (!fits)
    corrupt_error(label + ": its shape of " + std::to_string(axes) + " axes is beyond " + std::to_string(AXES) +
                  " axes or what an array can hold");
  const Shape sides(shape, shape + axes);
  if (data.size() != (empty ? 0 : most))
    corrupt_error(label + ": shape " + text_of(sides) + " of " + name_of(static_cast<Dtype>(dtype)) + " takes " +
                  std::to_string(empty ? 0 : most) + " bytes, came " + std::to_string(data.size()));
  if (static_cast<Dtype>(dtype) == Dtype::Bool)
    for (const char byte : data)
      if (byte & ~1) corrupt_error(label + ": bool bytes must be 0 or 1");
  Array array(static_cast<Dtype>(dtype), sides);
  if (!data.empty()) std::memcpy(array.bytes.data(), data.data(), data.size());
  return array;
}

std::pair<std::string, Array> decode_column(std::string_view message) {
  Reader reader(message, "Column");
  std::string name;
  std::uint64_t dtype = 0;
  std::vector<std::uint64_t> shape;
  std::string_view data;
  while (reader.next()) {
    switch (reader.field) {
      case 1: name = reader.text(); break;
      case 2: dtype = reader.natural(); break;
      case 3:
        if (reader.type == 2) {
          Reader packed(reader.bytes(), "Column");
          while (!packed.empty()) shape.push_back(packed.varint());
        } else {
          shape.push_back(reader.natural());
        }
        break;
      case 4: data = reader.bytes(); break;
      default: reader.skip();
    }
    if (shape.size() > 2 * AXES) reader.fail("a column of too many axes");
  }
  return {name, read_column(name, dtype > 99 ? 99 : static_cast<int>(dtype), shape.data(), shape.size(), data)};
}

Announcement decode_announcement(std::string_view payload, std::size_t limit) {
  Reader reader = opened(payload, ANNOUNCEMENT, limit);
  Announcement found;
  while (reader.next()) {
    switch (reader.field) {
      case 4: found.version_json = reader.bytes(); break;
      case 5: found.full = reader.natural() != 0; break;
      case 6: {
        Reader settled(reader.bytes(), "Announcement");
        std::string stream;
        std::uint64_t fragments = 0;
        while (settled.next()) {
          if (settled.field == 1)
            stream = settled.bytes();
          else if (settled.field == 2)
            fragments = settled.natural();
          else
            settled.skip();
        }
        found.settled.emplace_back(digits(stream, 16, "settled stream"), fragments);
        break;
      }
      case 15: found.tensors.push_back(decode_column(reader.bytes())); break;
      default: reader.skip();
    }
  }
  check_names(found.tensors);
  found.version = Version::parse(found.version_json);
  for (const auto& [name, array] : found.tensors) {
    const std::string label = "version " + std::to_string(found.version.number) + ": tensor '" + name + "' ";
    const auto told = found.version.tensors.find(name);
    if (told == found.version.tensors.end()) corrupt_error(label + "came, but its manifest does not name it");
    const std::string hash = hex(sha256(array.bytes.data(), array.bytes.size()));
    if (told->second.dtype != array.dtype || told->second.shape != array.shape || told->second.sha256 != hash)
      corrupt_error(label + "should be " + name_of(told->second.dtype) + " " + text_of(told->second.shape) +
                    " with SHA-256 " + told->second.sha256 + ", came " + name_of(array.dtype) + " " +
                    text_of(array.shape) + " with " + hash + ": fetch the version again");
  }
  return found;
}

std::pair<Fragment, Columns> decode_fragment(std::string_view payload, std::size_t limit) {
  Reader reader = opened(payload, FRAGMENT, limit);
  Fragment found;
  found.policy.clear();
  Columns columns;
  while (reader.next()) {
    switch (reader.field) {
      case 4: found.run = reader.text(); break;
      case 5: found.stream = digits(reader.bytes(), 16, "stream"); break;
      case 6: found.seq = reader.natural(); break;
      case 7: found.version = reader.natural(); break;
      case 8: found.attempt = reader.natural(); break;
      case 9: found.spec = digits(reader.bytes(), 32, "spec"); break;
      case 10: found.decision = reader.natural(); break;
      case 11: found.policy = reader.text(); break;
      case 12: found.actor = reader.text(); break;
      case 13: found.source = reader.text(); break;
      case 15: columns.push_back(decode_column(reader.bytes())); break;
      default: reader.skip();
    }
  }
  if (found.stream.empty() || found.spec.empty()) reader.fail("it lacks its stream or its spec");
  check_names(columns);
  return {found, std::move(columns)};
}

Credit decode_credit(std::string_view payload) {
  Reader reader = opened(payload, CREDIT, LIMIT);
  Credit found;
  std::uint64_t mode = 0;
  while (reader.next()) {
    switch (reader.field) {
      case 4: found.run = reader.text(); break;
      case 5: found.stream = digits(reader.bytes(), 16, "stream"); break;
      case 6: found.n = reader.natural(); break;
      case 7: {
        const std::uint64_t bits = reader.fixed(8);
        std::memcpy(&found.reward, &bits, sizeof bits);
        break;
      }
      case 8: mode = reader.natural(); break;
      case 9: found.id = reader.text(); break;
      default: reader.skip();
    }
  }
  if (mode != 1 && mode != 2)
    corrupt_error("credit '" + found.id + "': its mode must be add or set, came number " + std::to_string(mode));
  found.set = mode == 2;
  if (found.stream.empty()) reader.fail("it lacks its stream");
  return found;
}

}  // namespace farfield
