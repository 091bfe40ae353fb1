#include "fallback.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace farfield {

namespace {

template <class T>
void store(void* out, std::size_t index, double value) {
  static_cast<T*>(out)[index] = static_cast<T>(value);
}

void write(Dtype dtype, void* out, std::size_t index, double value) {
  switch (dtype) {
    case Dtype::Bool:
    case Dtype::Uint8: return store<std::uint8_t>(out, index, value);
    case Dtype::Int8: return store<std::int8_t>(out, index, value);
    case Dtype::Int16: return store<std::int16_t>(out, index, value);
    case Dtype::Int32: return store<std::int32_t>(out, index, value);
    case Dtype::Int64: return store<std::int64_t>(out, index, value);
    case Dtype::Uint16: return store<std::uint16_t>(out, index, value);
    case Dtype::Uint32: return store<std::uint32_t>(out, index, value);
    case Dtype::Uint64: return store<std::uint64_t>(out, index, value);
    case Dtype::Float32: return store<float>(out, index, value);
    case Dtype::Float64: return store<double>(out, index, value);
    default: config_error(std::string("fallback: actions of dtype ") + name_of(dtype) + " cannot be chosen here");
  }
}

// Whether the element of a mask is set, in whatever type it came.
bool allowed(const View& mask, std::size_t index) {
  const std::size_t size = size_of(mask.dtype);
  const auto* at = static_cast<const unsigned char*>(mask.data) + index * size;
  if (mask.dtype == Dtype::Float32 || mask.dtype == Dtype::Float64 || mask.dtype == Dtype::Float16) {
    return std::any_of(at, at + size - 1, [](unsigned char byte) { return byte != 0; }) || (at[size - 1] & 0x7FU) != 0;
  }
  return std::any_of(at, at + size, [](unsigned char byte) { return byte != 0; });
}

std::size_t choices_of(const Field& field, std::size_t index) {
  switch (field.kind) {
    case Field::Kind::Discrete: return static_cast<std::size_t>(field.sizes[0]);
    case Field::Kind::MultiDiscrete: return static_cast<std::size_t>(field.sizes[index]);
    case Field::Kind::MultiBinary: return 2;
    case Field::Kind::Box: return 0;
  }
  return 0;
}

double bound(const std::vector<double>& bounds, std::size_t index, double otherwise) {
  if (bounds.empty()) return otherwise;
  const double found = bounds[bounds.size() == 1 ? 0 : index];
  return std::isfinite(found) && std::abs(found) < 1e30 ? found : otherwise;
}

}  // namespace

Chooser::Chooser(const Spec& spec, const Fallback& fallback, std::size_t lanes, std::uint64_t seed)
    : spec_(spec), given_(fallback.action), lanes_(std::max<std::size_t>(lanes, 1)), dice_(seed) {
  for (std::size_t f = 0; f < spec.actions.size(); ++f) {
    const Field& field = spec.actions[f];
    std::size_t offset = 0;
    int masked = -1;
    for (std::size_t o = 0; o < spec.observations.size(); ++o) {
      if (!field.mask.empty() && spec.observations[o].name == field.mask) masked = static_cast<int>(o);
    }
    for (std::size_t index = 0; index < field.count(); ++index) {
      Part part{f, index, choices_of(field, index), bound(field.low, index, -1.0), bound(field.high, index, 1.0),
                field.kind == Field::Kind::MultiBinary ? -1 : masked, offset};
      offset += part.choices;
      parts_.push_back(part);
    }
  }
  for (const Field& field : spec.observations) mask_sizes_.push_back(field.count());
}

void Chooser::choose(const View* observations, void* const* actions) {
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    for (std::size_t which = 0; which < parts_.size(); ++which) {
      choose(parts_[which], which, observations, lane, actions[parts_[which].field]);
    }
  }
}

void Chooser::choose(const Part& part, std::size_t which, const View* observations, std::size_t lane, void* out) {
  const Field& field = spec_.actions[part.field];
  const std::size_t place = lane * field.count() + part.index;
  if (part.choices == 0) {
    const double value = given_.empty() ? part.low + dice_.unit() * (part.high - part.low) : given_[which];
    return write(field.dtype, out, place, value);
  }
  const View* mask = part.mask < 0 ? nullptr : &observations[part.mask];
  const std::size_t width = mask ? mask_sizes_[static_cast<std::size_t>(part.mask)] : 0;
  if (mask && (!mask->data || mask->count < lanes_ * width)) mask = nullptr;  // recording it says what is wrong
  const auto open = [&](std::size_t choice) { return !mask || allowed(*mask, lane * width + part.offset + choice); };
  if (!given_.empty() && open(static_cast<std::size_t>(given_[which]))) {
    return write(field.dtype, out, place, given_[which]);
  }
  std::size_t count = 0;
  for (std::size_t choice = 0; choice < part.choices; ++choice) count += open(choice) ? 1 : 0;
  if (count == 0) return write(field.dtype, out, place, static_cast<double>(dice_.below(part.choices)));
  std::size_t skip = dice_.below(count);
  std::size_t choice = 0;
  while (!open(choice) || skip-- > 0) ++choice;
  write(field.dtype, out, place, static_cast<double>(choice));
}

void check(const Spec& spec, const Fallback& fallback) {
  if (fallback.action.empty()) return;
  std::size_t at = 0;
  std::size_t needed = 0;
  for (const Field& field : spec.actions) needed += field.count();
  if (fallback.action.size() != needed) {
    config_error("fallback.action: expected " + std::to_string(needed) + " numbers, one for each element of the " +
                 "spec's actions, came " + std::to_string(fallback.action.size()));
  }
  for (const Field& field : spec.actions) {
    for (std::size_t index = 0; index < field.count(); ++index, ++at) {
      const double value = fallback.action[at];
      const std::size_t choices = choices_of(field, index);
      const bool choice = value >= 0.0 && value < static_cast<double>(choices) && value == std::floor(value);
      const bool good = choices == 0 ? std::isfinite(value) : choice;
      if (good) continue;
      config_error("fallback.action: '" + field.name + "': expected " +
                   (choices == 0 ? std::string("a finite number")
                                 : "a whole number from 0 and below " + std::to_string(choices)) +
                   ", came " + std::to_string(value));
    }
  }
}

}  // namespace farfield
