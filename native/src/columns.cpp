// The element types: names, sizes, and how they are written in messages.
#include "farfield/columns.hpp"

namespace farfield {
namespace {

struct Type {
  const char* name;
  std::size_t size;
};
constexpr Type TYPES[] = {{"", 0},        {"bool", 1},    {"int8", 1},   {"int16", 2},  {"int32", 4},
                          {"int64", 8},   {"uint8", 1},   {"uint16", 2}, {"uint32", 4}, {"uint64", 8},
                          {"float16", 2}, {"float32", 4}, {"float64", 8}};

}  // namespace

std::size_t size_of(Dtype dtype) { return TYPES[static_cast<int>(dtype)].size; }

const char* name_of(Dtype dtype) { return TYPES[static_cast<int>(dtype)].name; }

Dtype dtype_of(const std::string& name) {
  for (int i = 1; i <= static_cast<int>(Dtype::Float64); ++i)
    if (name == TYPES[i].name) return static_cast<Dtype>(i);
  return Dtype::None;
}

bool is_float(Dtype dtype) { return dtype >= Dtype::Float16; }

std::size_t count_of(const Shape& shape) {
  std::size_t count = 1;
  for (const std::size_t side : shape) count *= side;
  return count;
}

std::string text_of(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

}  // namespace farfield
