// JSON text in, values out, and back: as much of it as manifests need. Written canonically: keys sorted, no spaces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace farfield {

/// How many bytes the first character of some UTF-8 takes; 0 where it is none (overlong forms and surrogates are none).
std::size_t utf8_step(std::string_view text);

/// A JSON value. Objects keep the order in which their keys came; a key that comes twice has its last value.
class Json {
 public:
  enum class Kind { Null, Bool, Integer, Real, Text, List, Object };
  using Item = std::pair<std::string, Json>;

  Json() = default;
  Json(bool value) : kind_(Kind::Bool), flag_(value) {}
  Json(int value) : Json(static_cast<std::int64_t>(value)) {}
  Json(std::int64_t value) : kind_(Kind::Integer), negative_(value < 0), magnitude_(magnitude(value)) {}
  Json(std::uint64_t value) : kind_(Kind::Integer), magnitude_(value) {}
  Json(double value) : kind_(Kind::Real), real_(value) {}
  Json(const char* value) : kind_(Kind::Text), text_(value) {}
  Json(std::string value) : kind_(Kind::Text), text_(std::move(value)) {}
  Json(std::vector<Json> items) : kind_(Kind::List), list_(std::move(items)) {}

  static Json object() {
    Json made;
    made.kind_ = Kind::Object;
    return made;
  }
  /// An object of these members; of a key that comes twice the last one stays.
  static Json object(std::vector<Item> items);
  static Json list() { return Json(std::vector<Json>{}); }

  /// Reads one value and nothing behind it; CorruptError says where it stops making sense. `what` names it in errors.
  static Json parse(std::string_view text, const std::string& what = "JSON");
  /// Writes canonical JSON, byte for byte as farfield.canonical.to_json; what is not finite as "Infinity" and so on.
  std::string write() const;

  Kind kind() const { return kind_; }
  bool null() const { return kind_ == Kind::Null; }
  bool is_object() const { return kind_ == Kind::Object; }
  bool is_list() const { return kind_ == Kind::List; }
  bool is_text() const { return kind_ == Kind::Text; }
  bool is_number() const { return kind_ == Kind::Integer || kind_ == Kind::Real; }

  // Each gives the value or raises a CorruptError that says what came instead.
  bool flag() const;
  std::int64_t integer() const;
  std::uint64_t natural() const;
  /// A number; also "Infinity", "-Infinity" and "NaN", which is how JSON of ours spells them.
  double real() const;
  const std::string& text() const;
  const std::vector<Json>& items() const;
  const std::vector<Item>& members() const;

  /// The digits of a whole number.
  std::string decimal() const;

  /// The member of an object, or null where there is none.
  const Json* find(std::string_view key) const;
  /// The member of an object, or a CorruptError that names the key.
  const Json& at(std::string_view key) const;
  /// Sets a member of an object (a null value becomes an object first).
  Json& set(std::string key, Json value);
  /// Appends to a list (a null value becomes a list first).
  Json& add(Json value);

 private:
  static std::uint64_t magnitude(std::int64_t value) {
    return value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  }

  Kind kind_ = Kind::Null;
  bool flag_ = false, negative_ = false;
  std::uint64_t magnitude_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<Json> list_;
  std::vector<Item> object_;
};

}  // namespace farfield
