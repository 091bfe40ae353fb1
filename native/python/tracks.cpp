// Slot, Snapshot and Track as Python sees them: called millions of times, so the short methods are written by hand.
#include "tracks.hpp"

#include "calls.hpp"

namespace farfield::python {
namespace {

/// Runs what may raise on a track, and gives its answer or null with the error set.
template <class F>
PyObject* guarded(PyObject* self, F f) {
  if (!nb::inst_ready(self)) return PyErr_Format(PyExc_TypeError, "a track was made without calling it");
  try {
    return f(*nb::inst_ptr<TrackOf>(nb::handle(self)));
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    raise(error);
  }
  return nullptr;
}

/// act(obs, mask=None, greedy=False)
PyObject* act(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static const char* const KNOWN[] = {"obs", "mask", "greedy"};
  PyObject* values[3] = {nullptr, nullptr, nullptr};
  if (count > 3) return PyErr_Format(PyExc_TypeError, "act() takes 3 arguments, came %zd", count);
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = given[i];
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) {
    int place = 0;
    while (place < 3 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), KNOWN[place]) != 0) ++place;
    if (place == 3 || values[place])
      return PyErr_Format(PyExc_TypeError, "act() got an unexpected argument %R", PyTuple_GET_ITEM(names, i));
    values[place] = given[count + i];
  }
  if (!values[0]) return PyErr_Format(PyExc_TypeError, "act() needs an observation");
  const int greedy = values[2] ? PyObject_IsTrue(values[2]) : 0;
  if (greedy < 0) return nullptr;
  return guarded(self, [&](TrackOf& track) { return track.act(values[0], values[1], greedy != 0); });
}

/// reward(amount)
PyObject* reward(PyObject* self, PyObject* amount) {
  return guarded(self, [&](TrackOf& track) -> PyObject* {
    track.reward(amount);
    Py_RETURN_NONE;
  });
}

PyMethodDef SHORT[] = {
    {"act", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(act)), METH_FASTCALL | METH_KEYWORDS,
     "Decide, and open a row for what comes of it; on an error nothing has happened."},
    {"reward", reward, METH_O, "Add to the reward of the open row: a number, or one for each lane."},
};

// A track holds what takes its fragments, which may well hold the track: the collector has to see that.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<TrackOf>(nb::handle(self))->emit_.ptr());
  return 0;
}

int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<TrackOf>(nb::handle(self))->emit_ = nb::none();
  return 0;
}

PyType_Slot COLLECTED[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace

void add_tracks(nb::module_& module) {
  nb::class_<SnapshotOf>(module, "Snapshot", "A version to act with; never changed, shared by any number of threads.")
      .def(
          "__init__",
          [](SnapshotOf* self, nb::bytes version, nb::handle weights) {
            const Named named(weights, "tensor");
            const nb::gil_scoped_release release;
            new (self) SnapshotOf{Snapshot::make(std::string_view(version.c_str(), version.size()),
                                                 [&](const std::string& name) { return named.find(name); })};
          },
          nb::arg("version"), nb::arg("weights"))
      .def_prop_ro("number", [](const SnapshotOf& self) { return self.held->number(); })
      .def_prop_ro("attempt", [](const SnapshotOf& self) { return self.held->attempt(); });
  nb::class_<SlotOf>(module, "Slot", "Holds the newest snapshot; tracks take it up at their next decision.")
      .def(nb::init<>())
      .def(
          "put",
          [](SlotOf& self, nb::object snapshot) {
            self.held->put(snapshot.is_none() ? nullptr : nb::cast<SnapshotOf&>(snapshot).held);
            self.current = std::move(snapshot);
          },
          nb::arg("snapshot").none(), "Let every track act with this one from its next decision on.")
      .def_prop_ro("snapshot", [](const SlotOf& self) { return self.current; });
  nb::class_<TrackOf> track(module, "Track", nb::type_slots(COLLECTED),
                            "The rows of one stream while they are written.");
  track
      .def(nb::init<nb::handle, nb::bytes, std::string, std::string, std::string, std::string, std::uint64_t,
                    std::size_t, std::size_t, nb::object>(),
           nb::arg("slot"), nb::arg("spec"), nb::kw_only(), nb::arg("run"), nb::arg("policy"), nb::arg("actor"),
           nb::arg("stream"), nb::arg("seed"), nb::arg("steps"), nb::arg("lanes"), nb::arg("emit"))
      .def("end", &TrackOf::end, nb::arg("truncated") = false, nb::arg("obs").none() = nb::none(),
           nb::arg("mask").none() = nb::none(), "End the episode after the open row.")
      .def("restart", &TrackOf::restart, nb::arg("ended"), nb::arg("truncated").none() = nb::none(),
           nb::arg("obs").none() = nb::none(), nb::arg("mask").none() = nb::none(),
           "Say in which lanes an episode ended with the open row; the others go on.")
      .def("record", &TrackOf::record, nb::arg("obs").none(), nb::arg("action").none(), nb::arg("reward").none(),
           nb::arg("mask").none() = nb::none(), nb::arg("source") = "host", "Write a row that somebody else decided.")
      .def("put", &TrackOf::put, nb::arg("obs").none(), nb::arg("action").none(), nb::arg("log_prob").none(),
           nb::kw_only(), nb::arg("memory").none() = nb::none(), nb::arg("version"), nb::arg("attempt"),
           nb::arg("mask").none() = nb::none(), nb::arg("source") = "", "Open a row that a server decided.")
      .def("credit", &TrackOf::credit, nb::arg("n"), nb::arg("amount"), nb::arg("mode") = "add",
           "Change the reward of a decision that is still here.")
      .def("cut", &TrackOf::cut, "Emit the rows that are closed, and give how many.")
      .def("scores", &TrackOf::scores, nb::arg("obs").none(), nb::arg("mask").none() = nb::none(),
           "Score each choice of the first action, without acting.")
      .def("memory", &TrackOf::memory, "Give what the next decision would remember.")
      .def_prop_ro("stream", &TrackOf::stream)
      .def_prop_ro("decision", [](const TrackOf& self) { return static_cast<std::int64_t>(self.track().decision()); })
      .def_prop_ro("seq", [](const TrackOf& self) { return self.track().seq(); })
      .def_prop_ro("rows", [](const TrackOf& self) { return self.track().rows(); })
      .def_prop_ro("oldest", &TrackOf::oldest)
      .def_prop_ro("version", [](const TrackOf& self) { return self.track().version(); });
  for (PyMethodDef& method : SHORT) {
    const nb::object made = nb::steal(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(track.ptr()), &method));
    nb::setattr(track, method.ml_name, made);
  }
}

}  // namespace farfield::python
