// Python's values in, views of their elements out, and arrays of NumPy's back.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "farfield/columns.hpp"

namespace farfield::python {

namespace nb = nanobind;

/// Looks NumPy up, once, when the module is loaded.
void find_numpy();
/// Python's class for an error of ours, set as the one that is being raised.
void raise(const std::exception& error);

/// Looks at an array of NumPy's as it lies; false where that needs a conversion first, or its type a closer look.
bool look(PyObject* value, View& view, bool closely = false);
/// Looks at anything like an array, converting what must be; what that makes is kept in `kept`. SpecError with this
/// label ("'obs': expected float32 of shape [4]") where it is no array.
View read(PyObject* value, std::vector<nb::object>& kept, const std::string& label);
/// A new array of NumPy's, and where its elements go.
nb::object make(Dtype dtype, const Shape& shape, void** data);
nb::object make(const Array& array);
/// Whether it is a mapping; what dict says of itself needs no question.
bool mapping(PyObject* value);

/// Arrays by name, looked at: they live as long as this.
struct Named {
  explicit Named(nb::handle mapping, const std::string& what);
  View find(const std::string& name) const;

  std::vector<std::pair<std::string, View>> views;
  std::vector<nb::object> kept;
};

}  // namespace farfield::python
