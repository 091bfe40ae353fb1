// The element types of the wire, arrays that own their bytes, and arrays that are only looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace farfield {

/// Element types, numbered as in farfield.proto.
enum class Dtype : std::uint8_t {
  None = 0,
  Bool,
  Int8,
  Int16,
  Int32,
  Int64,
  Uint8,
  Uint16,
  Uint32,
  Uint64,
  Float16,
  Float32,
  Float64
};

using Shape = std::vector<std::size_t>;

/// Bytes of one element.
std::size_t size_of(Dtype dtype);
/// NumPy's name, such as "float32".
const char* name_of(Dtype dtype);
/// The type of that name; Dtype::None where there is none.
Dtype dtype_of(const std::string& name);
bool is_float(Dtype dtype);
/// How many elements an array of this shape has.
std::size_t count_of(const Shape& shape);
/// "[3, 4]", for messages.
std::string text_of(const Shape& shape);

template <class T>
constexpr Dtype dtype_for();
template <>
constexpr Dtype dtype_for<bool>() {
  return Dtype::Bool;
}
template <>
constexpr Dtype dtype_for<std::int8_t>() {
  return Dtype::Int8;
}
template <>
constexpr Dtype dtype_for<std::int16_t>() {
  return Dtype::Int16;
}
template <>
constexpr Dtype dtype_for<std::int32_t>() {
  return Dtype::Int32;
}
template <>
constexpr Dtype dtype_for<std::int64_t>() {
  return Dtype::Int64;
}
template <>
constexpr Dtype dtype_for<std::uint8_t>() {
  return Dtype::Uint8;
}
template <>
constexpr Dtype dtype_for<std::uint16_t>() {
  return Dtype::Uint16;
}
template <>
constexpr Dtype dtype_for<std::uint32_t>() {
  return Dtype::Uint32;
}
template <>
constexpr Dtype dtype_for<std::uint64_t>() {
  return Dtype::Uint64;
}
template <>
constexpr Dtype dtype_for<float>() {
  return Dtype::Float32;
}
template <>
constexpr Dtype dtype_for<double>() {
  return Dtype::Float64;
}

/// A row-major array that belongs to the caller; whoever is given one copies what it needs before it returns.
struct View {
  const void* data = nullptr;
  Dtype dtype = Dtype::None;
  std::size_t count = 0;               // of elements
  const std::size_t* shape = nullptr;  // none: only the count is compared
  std::size_t axes = 0;

  View() = default;
  View(const void* data, Dtype dtype, std::size_t count, const std::size_t* shape = nullptr, std::size_t axes = 0)
      : data(data), dtype(dtype), count(count), shape(shape), axes(axes) {}
  template <class T>
  View(const T* values, std::size_t count) : data(values), dtype(dtype_for<T>()), count(count) {}
  template <class T>
  View(const std::vector<T>& values) : data(values.data()), dtype(dtype_for<T>()), count(values.size()) {}
};

/// A row-major array that owns its bytes.
struct Array {
  Dtype dtype = Dtype::None;
  Shape shape;
  std::vector<std::uint8_t> bytes;

  Array() = default;
  Array(Dtype dtype, Shape shape) : dtype(dtype), shape(std::move(shape)), bytes(count() * size_of(this->dtype)) {}
  template <class T>
  static Array of(Shape shape, const std::vector<T>& values) {
    Array made(dtype_for<T>(), std::move(shape));
    if (!made.bytes.empty()) std::memcpy(made.bytes.data(), values.data(), made.bytes.size());
    return made;
  }

  std::size_t count() const { return count_of(shape); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
  operator View() const {  // which has data even where there are no elements: no data means no array
    const void* data = bytes.empty() ? static_cast<const void*>(this) : bytes.data();
    return View(data, dtype, count(), shape.empty() ? reinterpret_cast<const std::size_t*>(this) : shape.data(),
                shape.size());
  }
};

/// Arrays by name, in an order that is kept.
using Columns = std::vector<std::pair<std::string, Array>>;

}  // namespace farfield
