// Slot, Snapshot and Track as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

namespace farfield::python {

void add_tracks(nanobind::module_& module);

}  // namespace farfield::python
