// JSON text in, values out; as strict as Python's reader.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <locale>
#include <sstream>

#include "farfield/error.hpp"
#include "farfield/json.hpp"

namespace farfield {
namespace {

constexpr int DEPTH = 100;  // manifests need about eight

class Reader {
 public:
  Reader(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  Json whole() {
    Json value = read(0);
    space();
    if (at_ != text_.size()) fail("something stands behind the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* why) const {
    corrupt_error(what_ + " is no JSON of ours: " + why + " (byte " + std::to_string(at_) + " of " +
                  std::to_string(text_.size()) + "): fetch or write it again");
  }

  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) fail("an unknown word");
    at_ += expected.size();
  }

  Json read(int depth) {
    if (depth > DEPTH) fail("it is nested too deeply");
    space();
    if (at_ >= text_.size()) fail("it ends too early");
    switch (text_[at_]) {
      case '{': return object(depth);
      case '[': return list(depth);
      case '"': return Json(string());
      case 't': word("true"); return Json(true);
      case 'f': word("false"); return Json(false);
      case 'n': word("null"); return Json();
      default: return number();
    }
  }

  Json object(int depth) {
    std::vector<Json::Item> items;
    ++at_;
    space();
    if (peek() == '}') return ++at_, Json::object();
    for (;;) {
      space();
      if (peek() != '"') fail("a key must be a string");
      std::string key = string();
      space();
      if (peek() != ':') fail("a colon is missing behind a key");
      ++at_;
      items.emplace_back(std::move(key), read(depth + 1));
      space();
      if (peek() == '}') return ++at_, Json::object(std::move(items));
      if (peek() != ',') fail("a comma is missing in an object");
      ++at_;
    }
  }

  Json list(int depth) {
    Json made = Json::list();
    ++at_;
    space();
    if (peek() == ']') return ++at_, made;
    for (;;) {
      made.add(read(depth + 1));
      space();
      if (peek() == ']') return ++at_, made;
      if (peek() != ',') fail("a comma is missing in a list");
      ++at_;
    }
  }

  std::string string() {
    std::string out;
    ++at_;
    for (;;) {
      if (at_ >= text_.size()) fail("a string does not end");
      const unsigned char c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') return ++at_, out;
      if (c < 0x20) fail("a control character in a string");
      if (c == '\\')
        escape(out);
      else if (c < 0x80)
        out += text_[at_++];
      else
        multibyte(out);
    }
  }

  void escape(std::string& out) {
    ++at_;
    const char c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/': out += c; return;
      case 'b': out += '\b'; return;
      case 'f': out += '\f'; return;
      case 'n': out += '\n'; return;
      case 'r': out += '\r'; return;
      case 't': out += '\t'; return;
      case 'u': break;
      default: fail("an unknown escape");
    }
    std::uint32_t code = quad();
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
      at_ += 2;
      const std::uint32_t low = quad();
      if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      fail("half of a surrogate pair");
    }
    append(out, code);
  }

  std::uint32_t quad() {
    std::uint32_t code = 0;
    const std::string_view digits = text_.substr(std::min(at_, text_.size()), 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4) fail("an escape needs four digits");
    at_ += 4;
    return code;
  }

  static void append(std::string& out, std::uint32_t code) {
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xC0 | code >> 6);
      out += static_cast<char>(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      out += static_cast<char>(0xE0 | code >> 12);
      out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
      out += static_cast<char>(0x80 | (code & 0x3F));
    } else {
      out += static_cast<char>(0xF0 | code >> 18);
      out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
      out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
      out += static_cast<char>(0x80 | (code & 0x3F));
    }
  }

  void multibyte(std::string& out) {
    const std::size_t size = utf8_step(text_.substr(at_));
    if (!size) fail("text that is not UTF-8");
    out.append(text_.substr(at_, size));
    at_ += size;
  }

  bool digits() {
    const std::size_t from = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > from;
  }

  Json number() {
    const std::size_t from = at_;
    if (peek() == '-') ++at_;
    const bool zero = peek() == '0';
    const std::size_t first = at_;
    if (!digits() || (zero && at_ - first > 1)) fail("a value that is none");
    bool real = false;
    if (peek() == '.') {
      real = true;
      ++at_;
      if (!digits()) fail("a number that ends with its point");
    }
    if (peek() == 'e' || peek() == 'E') {
      real = true;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!digits()) fail("a number without its exponent");
    }
    const std::string_view found = text_.substr(from, at_ - from);
    if (!real) {
      std::int64_t value = 0;
      std::uint64_t large = 0;
      const char* end = found.data() + found.size();
      if (std::from_chars(found.data(), end, value).ec == std::errc()) return Json(value);
      if (std::from_chars(found.data(), end, large).ec == std::errc()) return Json(large);
    }
    return Json(decimal(found));
  }

  double decimal(std::string_view found) const {
    double value = 0;
#if defined(__cpp_lib_to_chars) && __cpp_lib_to_chars >= 201611L
    const auto [end, error] = std::from_chars(found.data(), found.data() + found.size(), value);
    if (error == std::errc() && end == found.data() + found.size()) return value;
#endif
    std::istringstream stream{std::string(found)};  // also for what is too large or too small
    stream.imbue(std::locale::classic());
    stream >> value;
    if (!std::isfinite(value) || std::abs(value) == std::numeric_limits<double>::max()) fail("a number out of range");
    return value;
  }

  std::string_view text_;
  const std::string& what_;
  std::size_t at_ = 0;
};

}  // namespace

std::size_t utf8_step(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned char head = byte(0);
  if (head < 0x80) return 1;
  const std::size_t more = head >= 0xF0 ? 3 : head >= 0xE0 ? 2 : 1;
  if (head < 0xC2 || head > 0xF4 || text.size() <= more) return 0;
  std::uint32_t code = head & (0x3Fu >> more);
  for (std::size_t i = 1; i <= more; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const bool shorter = (more == 2 && code < 0x800) || (more == 3 && code < 0x10000);
  return shorter || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : more + 1;
}

Json Json::parse(std::string_view text, const std::string& what) { return Reader(text, what).whole(); }

}  // namespace farfield
