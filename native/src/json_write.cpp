// JSON values in, canonical text out, byte for byte as farfield.canonical writes it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <locale>
#include <sstream>

#include "farfield/json.hpp"

namespace farfield {
namespace {

/// Shortest decimal digits that read back equal, and where the point stands: 0.digits * 10^point.
std::pair<std::string, int> shortest(double value) {
#if defined(__cpp_lib_to_chars) && __cpp_lib_to_chars >= 201611L
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string text(buffer, result.ptr);
#else
  std::string text;
  for (int precision = 0; precision < 18; ++precision) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out.precision(precision);
    out << std::scientific << value;
    text = out.str();
    std::istringstream back(text);
    back.imbue(std::locale::classic());
    double came = 0;
    if (back >> came && came == value) break;
  }
#endif
  const std::size_t exponent = text.find('e');
  std::string digits = text.substr(0, 1) + (exponent > 2 ? text.substr(2, exponent - 2) : "");
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  return {digits, std::stoi(text.substr(exponent + 1)) + 1};
}

void write_real(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "\"NaN\"";
    return;
  }
  if (std::isinf(value)) {
    out += value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    return;
  }
  if (std::signbit(value)) out += '-';
  if (value == 0) {
    out += "0.0";
    return;
  }
  const auto [digits, point] = shortest(std::abs(value));
  const int count = static_cast<int>(digits.size());
  if (count <= point && point <= 16) {
    out += digits + std::string(point - count, '0') + ".0";
  } else if (0 < point && point <= 16) {
    out += digits.substr(0, point) + "." + digits.substr(point);
  } else if (-5 < point && point <= 0) {
    out += "0." + std::string(-point, '0') + digits;
  } else {
    out += digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "") + "e" + std::to_string(point - 1);
  }
}

void write_text(std::string& out, const std::string& text) {
  static const char* const HEX = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += std::string("\\u00") + HEX[c >> 4] + HEX[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void write_value(std::string& out, const Json& value) {
  switch (value.kind()) {
    case Json::Kind::Null: out += "null"; break;
    case Json::Kind::Bool: out += value.flag() ? "true" : "false"; break;
    case Json::Kind::Integer: out += value.decimal(); break;
    case Json::Kind::Real: write_real(out, value.real()); break;
    case Json::Kind::Text: write_text(out, value.text()); break;
    case Json::Kind::List: {
      out += '[';
      const char* between = "";
      for (const Json& item : value.items()) {
        out += between;
        write_value(out, item);
        between = ",";
      }
      out += ']';
      break;
    }
    case Json::Kind::Object: {
      std::vector<const Json::Item*> sorted;
      for (const Json::Item& item : value.members()) sorted.push_back(&item);
      std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->first < b->first; });
      out += '{';
      const char* between = "";
      for (const Json::Item* item : sorted) {
        out += between;
        write_text(out, item->first);
        out += ':';
        write_value(out, item->second);
        between = ",";
      }
      out += '}';
    }
  }
}

}  // namespace

std::string Json::write() const {
  std::string out;
  write_value(out, *this);
  return out;
}

}  // namespace farfield
