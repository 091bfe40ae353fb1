// What a program hands over in, checked values of the field's own type in a row's buffer out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "farfield/columns.hpp"
#include "farfield/spec.hpp"

namespace farfield {

/// Takes the values of one field, [lanes, …] or, for a plain track, without the axis of lanes.
class Inlet {
 public:
  Inlet(Field field, std::size_t lanes);

  /// Checks, converts and copies; SpecError where the value is none of this field.
  void write(const View& value, std::uint8_t* out) const;
  /// Bytes of one row, all lanes.
  std::size_t bytes() const { return count_ * size_of(field.dtype); }

  const Field field;

 private:
  void convert(const View& value, std::uint8_t* out) const;
  void check(const std::uint8_t* out) const;
  [[noreturn]] void refuse(const View& value) const;
  [[noreturn]] void blame(const std::uint8_t* out, std::size_t place) const;

  Shape shape_;
  std::size_t count_;
  std::vector<std::int64_t> sizes_;  // choices of each element, one for all, or none to check
};

/// Takes all observations of one decision, and actions that were made elsewhere.
class Intake {
 public:
  Intake(const Spec& spec, std::size_t lanes);

  /// Writes observations to their rows. Without data a value is that of `before`, or missing where there is none.
  void write(const View* values, std::uint8_t* const* rows, const std::uint8_t* const* before) const;
  /// Writes an action that was made elsewhere.
  void choice(const View* values, std::uint8_t* const* rows) const;
  /// Refuses actions that their mask forbids; one that allows nothing forbids nothing.
  void permit(const std::uint8_t* const* observations, const std::uint8_t* const* actions) const;

  const std::vector<Inlet>& observations() const { return observations_; }
  const std::vector<Inlet>& actions() const { return actions_; }

 private:
  std::size_t lanes_;
  std::vector<Inlet> observations_, actions_;
  std::vector<std::ptrdiff_t> masks_;  // of each action: which observation, or -1
};

/// Reads a number of any type.
double load_number(Dtype dtype, const std::uint8_t* data, std::size_t i);
/// A number as Python would show it.
std::string text_of(double value);

}  // namespace farfield
