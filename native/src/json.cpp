// JSON values: what they hold, or an error that says what came instead.
#include "farfield/json.hpp"

#include <limits>
#include <map>

#include "farfield/error.hpp"

namespace farfield {
namespace {

const char* name_of_kind(Json::Kind kind) {
  static const char* const NAMES[] = {"null", "true or false", "a whole number", "a number",
                                      "text", "a list",        "an object"};
  return NAMES[static_cast<int>(kind)];
}

[[noreturn]] void mismatch(const char* expected, Json::Kind came) {
  corrupt_error(std::string("JSON: expected ") + expected + ", came " + name_of_kind(came));
}

}  // namespace

Json Json::object(std::vector<Item> items) {
  Json made = object();
  std::map<std::string_view, std::size_t> last;
  for (std::size_t i = 0; i < items.size(); ++i) last[items[i].first] = i;
  if (last.size() != items.size()) {
    std::vector<Item> kept;
    for (std::size_t i = 0; i < items.size(); ++i)
      if (last[items[i].first] == i) kept.push_back(items[i]);
    items = std::move(kept);
  }
  made.object_ = std::move(items);
  return made;
}

std::string Json::decimal() const { return (negative_ ? "-" : "") + std::to_string(magnitude_); }

bool Json::flag() const {
  if (kind_ != Kind::Bool) mismatch("true or false", kind_);
  return flag_;
}

std::int64_t Json::integer() const {
  if (kind_ != Kind::Integer) mismatch("a whole number", kind_);
  if (negative_) return static_cast<std::int64_t>(0 - magnitude_);
  if (magnitude_ >> 63) corrupt_error("JSON: " + decimal() + " is beyond 64 bits with a sign");
  return static_cast<std::int64_t>(magnitude_);
}

std::uint64_t Json::natural() const {
  if (kind_ != Kind::Integer) mismatch("a whole number", kind_);
  if (negative_) corrupt_error("JSON: expected a number from 0 up, came " + decimal());
  return magnitude_;
}

double Json::real() const {
  if (kind_ == Kind::Integer) return negative_ ? -static_cast<double>(magnitude_) : static_cast<double>(magnitude_);
  if (kind_ == Kind::Text) {
    if (text_ == "Infinity") return std::numeric_limits<double>::infinity();
    if (text_ == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (text_ == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  if (kind_ != Kind::Real) mismatch("a number", kind_);
  return real_;
}

const std::string& Json::text() const {
  if (kind_ != Kind::Text) mismatch("text", kind_);
  return text_;
}

const std::vector<Json>& Json::items() const {
  if (kind_ != Kind::List) mismatch("a list", kind_);
  return list_;
}

const std::vector<Json::Item>& Json::members() const {
  if (kind_ != Kind::Object) mismatch("an object", kind_);
  return object_;
}

const Json* Json::find(std::string_view key) const {
  if (kind_ != Kind::Object) return nullptr;
  for (const Item& item : object_)
    if (item.first == key) return &item.second;
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (kind_ != Kind::Object) mismatch("an object", kind_);
  if (const Json* found = find(key)) return *found;
  corrupt_error("JSON: an object lacks the key '" + std::string(key) + "'");
}

Json& Json::set(std::string key, Json value) {
  if (kind_ == Kind::Null) kind_ = Kind::Object;
  if (kind_ != Kind::Object) mismatch("an object", kind_);
  for (Item& item : object_)
    if (item.first == key) return item.second = std::move(value), *this;
  object_.emplace_back(std::move(key), std::move(value));
  return *this;
}

Json& Json::add(Json value) {
  if (kind_ == Kind::Null) kind_ = Kind::List;
  if (kind_ != Kind::List) mismatch("a list", kind_);
  list_.push_back(std::move(value));
  return *this;
}

}  // namespace farfield
