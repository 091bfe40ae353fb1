// What a program hands over in, checked values of the field's own type in a row's buffer out.
#include "intake.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "farfield/decide.hpp"
#include "farfield/error.hpp"
#include "halves.hpp"
#include "kernels.hpp"

namespace farfield {
namespace {

enum class Family { Bool, Natural, Integer, Real };

Family family(Dtype dtype) {
  if (dtype == Dtype::Bool) return Family::Bool;
  if (is_float(dtype)) return Family::Real;
  return dtype >= Dtype::Uint8 ? Family::Natural : Family::Integer;
}

template <class To, class From>
void copy(const void* from, std::size_t count, std::uint8_t* out) {
  const From* values = static_cast<const From*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    const To value = static_cast<To>(values[i]);
    std::memcpy(out + i * sizeof value, &value, sizeof value);
  }
}

/// Copies to one type from any; what floats do not hold never comes here.
template <class To>
void copy_to(const View& from, std::uint8_t* out) {
  switch (from.dtype) {
    case Dtype::Bool:
    case Dtype::Uint8: return copy<To, std::uint8_t>(from.data, from.count, out);
    case Dtype::Int8: return copy<To, std::int8_t>(from.data, from.count, out);
    case Dtype::Int16: return copy<To, std::int16_t>(from.data, from.count, out);
    case Dtype::Int32: return copy<To, std::int32_t>(from.data, from.count, out);
    case Dtype::Int64: return copy<To, std::int64_t>(from.data, from.count, out);
    case Dtype::Uint16: return copy<To, std::uint16_t>(from.data, from.count, out);
    case Dtype::Uint32: return copy<To, std::uint32_t>(from.data, from.count, out);
    case Dtype::Uint64: return copy<To, std::uint64_t>(from.data, from.count, out);
    case Dtype::Float32: return copy<To, float>(from.data, from.count, out);
    case Dtype::Float64: return copy<To, double>(from.data, from.count, out);
    default:
      for (std::size_t i = 0; i < from.count; ++i) {
        const double value = load_number(from.dtype, static_cast<const std::uint8_t*>(from.data), i);
        copy<To, double>(&value, 1, out + i * sizeof(To));
      }
  }
}

std::string shape_of(const View& value) {
  return text_of(value.shape ? Shape(value.shape, value.shape + value.axes) : Shape{value.count});
}

}  // namespace

double load_number(Dtype dtype, const std::uint8_t* data, std::size_t i) {
  if (dtype == Dtype::Float64) {
    double value;
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    return value;
  }
  if (dtype == Dtype::Float32) {
    float value;
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    return value;
  }
  if (dtype == Dtype::Float16) {
    std::uint16_t bits;
    std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
    return from_half(bits);
  }
  return static_cast<double>(load_integer(dtype, data, i));
}

std::string text_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = Json(value).write();
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;
  const int exponent = std::stoi(text.substr(e + 1));
  const std::string digits = std::to_string(std::abs(exponent));
  return text.substr(0, e) + (exponent < 0 ? "e-" : "e+") + (digits.size() < 2 ? "0" : "") + digits;
}

Inlet::Inlet(Field given, std::size_t lanes) : field(std::move(given)), shape_(field.shape), sizes_(field.sizes) {
  if (lanes) shape_.insert(shape_.begin(), lanes);
  count_ = count_of(shape_);
  if (field.kind == Field::Kind::MultiBinary) sizes_ = {2};
  if (field.dtype == Dtype::Bool || is_float(field.dtype) || field.kind == Field::Kind::Box) sizes_.clear();
}

void Inlet::write(const View& value, std::uint8_t* out) const {
  const bool same = value.shape ? std::equal(value.shape, value.shape + value.axes, shape_.begin(), shape_.end())
                                : value.count == count_;
  if (!same || value.dtype == Dtype::None) refuse(value);
  if (value.dtype == field.dtype && field.dtype != Dtype::Bool) {
    if (count_) std::memcpy(out, value.data, bytes());
  } else {
    convert(value, out);
  }
  if (is_float(field.dtype) || !sizes_.empty()) check(out);
}

/// Converts where that loses at most precision; whole numbers go into any type that holds them.
void Inlet::convert(const View& value, std::uint8_t* out) const {
  const Family from = family(value.dtype), to = family(field.dtype);
  const std::uint8_t* data = static_cast<const std::uint8_t*>(value.data);
  if (from > to && (from == Family::Real || to == Family::Real)) refuse(value);
  switch (field.dtype) {
    case Dtype::Bool:
      for (std::size_t i = 0; i < count_; ++i) {
        const std::int64_t one = load_integer(value.dtype, data, i);
        if (value.dtype != Dtype::Bool && one != 0 && one != 1) refuse(value);
        out[i] = one != 0;
      }
      return;
    case Dtype::Int8: copy_to<std::int8_t>(value, out); break;
    case Dtype::Int16: copy_to<std::int16_t>(value, out); break;
    case Dtype::Int32: copy_to<std::int32_t>(value, out); break;
    case Dtype::Int64: copy_to<std::int64_t>(value, out); break;
    case Dtype::Uint8: copy_to<std::uint8_t>(value, out); break;
    case Dtype::Uint16: copy_to<std::uint16_t>(value, out); break;
    case Dtype::Uint32: copy_to<std::uint32_t>(value, out); break;
    case Dtype::Uint64: copy_to<std::uint64_t>(value, out); break;
    case Dtype::Float32: return copy_to<float>(value, out);
    case Dtype::Float64: return copy_to<double>(value, out);
    default:
      for (std::size_t i = 0; i < count_; ++i) {
        const std::uint16_t bits = to_half(static_cast<float>(load_number(value.dtype, data, i)));
        std::memcpy(out + i * sizeof bits, &bits, sizeof bits);
      }
      return;
  }
  if (from <= to) return;
  for (std::size_t i = 0; i < count_; ++i)
    if (load_integer(value.dtype, data, i) != load_integer(field.dtype, out, i)) refuse(value);
}

void Inlet::check(const std::uint8_t* out) const {
  if (field.dtype == Dtype::Float32) {
    if (best_kernels().finite(reinterpret_cast<const float*>(out), count_)) return;
  }
  if (is_float(field.dtype)) {
    for (std::size_t i = 0; i < count_; ++i)
      if (!std::isfinite(load_number(field.dtype, out, i))) blame(out, i);
    return;
  }
  for (std::size_t i = 0; i < count_; ++i) {
    const std::int64_t value = load_integer(field.dtype, out, i), size = sizes_[i % sizes_.size()];
    if (value >= 0 && value < size) continue;
    std::string came, sizes;
    for (std::size_t j = 0; j < count_; ++j)
      came += (j ? ", " : "") + std::to_string(load_integer(field.dtype, out, j));
    for (const std::int64_t one : sizes_) sizes += (sizes.empty() ? "" : ", ") + std::to_string(one);
    spec_error("'" + field.name + "': expected values from 0 and below [" + sizes + "], came " +
               (shape_.empty() ? came : "[" + came + "]"));
  }
}

void Inlet::refuse(const View& value) const {
  spec_error("'" + field.name + "': expected " + name_of(field.dtype) + " of shape " + text_of(shape_) + ", came " +
             name_of(value.dtype) + " of shape " + shape_of(value) + ": hand over what the spec declares");
}

void Inlet::blame(const std::uint8_t* out, std::size_t place) const {
  Shape at(shape_.size());
  std::size_t left = place;
  for (std::size_t axis = shape_.size(); axis-- > 0; left /= shape_[axis]) at[axis] = left % shape_[axis];
  spec_error("'" + field.name + "', element " + text_of(at) + ": expected a finite " + name_of(field.dtype) +
             ", came " + text_of(load_number(field.dtype, out, place)) + ": check where the program computes it");
}

Intake::Intake(const Spec& spec, std::size_t lanes) : lanes_(std::max<std::size_t>(lanes, 1)) {
  for (const Field& field : spec.observations) observations_.emplace_back(field, lanes);
  for (const Field& field : spec.actions) {
    actions_.emplace_back(field, lanes);
    std::ptrdiff_t mask = -1;
    for (std::size_t i = 0; !field.mask.empty() && i < spec.observations.size(); ++i)
      if (spec.observations[i].name == field.mask && spec.observations[i].count() == field.choices())
        mask = static_cast<std::ptrdiff_t>(i);
    masks_.push_back(mask);
  }
}

void Intake::write(const View* values, std::uint8_t* const* rows, const std::uint8_t* const* before) const {
  for (std::size_t i = 0; i < observations_.size(); ++i) {
    const Inlet& inlet = observations_[i];
    if (values && values[i].data) {
      inlet.write(values[i], rows[i]);
    } else if (before) {
      if (inlet.bytes()) std::memcpy(rows[i], before[i], inlet.bytes());
    } else {
      spec_error("'" + inlet.field.name + "' is missing: hand it over with every decision");
    }
  }
}

void Intake::choice(const View* values, std::uint8_t* const* rows) const {
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    if (!values[i].data) spec_error("'" + actions_[i].field.name + "' is missing: hand over the whole action");
    actions_[i].write(values[i], rows[i]);
  }
}

void Intake::permit(const std::uint8_t* const* observations, const std::uint8_t* const* actions) const {
  for (std::size_t a = 0; a < actions_.size(); ++a) {
    if (masks_[a] < 0) continue;
    const Field &field = actions_[a].field, &mask = observations_[static_cast<std::size_t>(masks_[a])].field;
    const std::uint8_t* allowed = observations[masks_[a]];
    std::size_t place = 0;
    for (std::size_t lane = 0; lane < lanes_; ++lane)
      for (std::size_t i = 0; i < field.sizes.size(); ++i) {
        const std::size_t size = static_cast<std::size_t>(field.sizes[i]);
        const std::size_t chosen =
            static_cast<std::size_t>(load_integer(field.dtype, actions[a], lane * field.sizes.size() + i));
        std::string others;
        for (std::size_t j = 0; j < size; ++j)
          if (load_number(mask.dtype, allowed, place + j) != 0)
            others += (others.empty() ? "" : ", ") + std::to_string(j);
        if (!others.empty() && (chosen >= size || load_number(mask.dtype, allowed, place + chosen) == 0))
          spec_error("'" + field.name + "': expected one of [" + others + "], which '" + mask.name + "' allows, came " +
                     std::to_string(chosen));
        place += size;
      }
  }
}

}  // namespace farfield
