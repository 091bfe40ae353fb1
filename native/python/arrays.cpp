// Python's values in, views of their elements out, and arrays of NumPy's back.
#include "arrays.hpp"

#include <cstring>

#include "farfield/error.hpp"

namespace farfield::python {
namespace {

// How an array of NumPy's begins. Every extension that was compiled against NumPy has these places built in, so they
// stay; that they are true here is tried when the module is loaded, and buffers are asked for where they are not.
struct Layout {
  PyObject_HEAD char* data;
  int axes;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int IN_ORDER = 0x0001, ALIGNED = 0x0100;

struct Known {
  PyObject *array = nullptr, *asarray = nullptr, *empty = nullptr, *mapping = nullptr, *order = nullptr;
  PyObject* dtypes[13] = {};
  PyObject* errors[6] = {};
  bool direct = false;
};
Known known;

const Layout& layout(PyObject* array) { return *reinterpret_cast<const Layout*>(array); }

Dtype dtype_at(PyObject* descriptor) {
  if (descriptor == known.dtypes[static_cast<int>(Dtype::Float32)]) return Dtype::Float32;
  for (int i = 1; i <= static_cast<int>(Dtype::Float64); ++i)
    if (descriptor == known.dtypes[i]) return static_cast<Dtype>(i);
  return Dtype::None;
}

/// The same for a description that only equals one of NumPy's own, such as that of what was read from a payload.
Dtype dtype_like(PyObject* descriptor) {
  for (int i = 1; i <= static_cast<int>(Dtype::Float64); ++i) {
    const int equal = PyObject_RichCompareBool(descriptor, known.dtypes[i], Py_EQ);
    if (equal < 0) throw nb::python_error();
    if (equal) return static_cast<Dtype>(i);
  }
  return Dtype::None;
}

/// Whether arrays are laid out as we think.
bool tried(const nb::module_& numpy) {
  const nb::object array = numpy.attr("zeros")(nb::make_tuple(3, 5), "float32");
  const Layout& seen = layout(array.ptr());
  return Py_TYPE(array.ptr())->tp_basicsize >= static_cast<Py_ssize_t>(sizeof(Layout)) && seen.axes == 2 &&
         seen.shape[0] == 3 && seen.shape[1] == 5 && seen.strides[0] == 20 && seen.strides[1] == 4 &&
         seen.data == reinterpret_cast<char*>(nb::cast<std::uintptr_t>(array.attr("ctypes").attr("data"))) &&
         seen.dtype == known.dtypes[static_cast<int>(Dtype::Float32)] && (seen.flags & IN_ORDER) &&
         !(layout(nb::object(array.attr("T")).ptr()).flags & IN_ORDER);
}

/// The same through the buffer protocol; the buffer is given back at once, since its owner is kept by the caller.
bool look_slowly(PyObject* value, View& view) {
  const nb::object dtype = nb::getattr(nb::handle(value), "dtype");
  view.dtype = dtype_like(dtype.ptr());
  Py_buffer buffer;
  if (view.dtype == Dtype::None || PyObject_GetBuffer(value, &buffer, PyBUF_ND) != 0) {
    PyErr_Clear();
    return false;
  }
  view.data = buffer.buf;
  view.count = static_cast<std::size_t>(buffer.len / buffer.itemsize);
  PyBuffer_Release(&buffer);
  return true;
}

}  // namespace

void find_numpy() {
  const nb::module_ numpy = nb::module_::import_("numpy"), errors = nb::module_::import_("farfield.errors");
  known.array = nb::object(numpy.attr("ndarray")).release().ptr();
  known.asarray = nb::object(numpy.attr("asarray")).release().ptr();
  known.empty = nb::object(numpy.attr("empty")).release().ptr();
  known.mapping = nb::object(nb::module_::import_("collections.abc").attr("Mapping")).release().ptr();
  known.order = nb::make_tuple("order").release().ptr();
  for (int i = 1; i <= static_cast<int>(Dtype::Float64); ++i)
    known.dtypes[i] = nb::object(numpy.attr("dtype")(name_of(static_cast<Dtype>(i)))).release().ptr();
  static const char* const NAMES[] = {"SpecError",   "MissingError", "CorruptError",
                                      "ConfigError", "FullError",    "ConflictError"};
  for (int i = 0; i < 6; ++i) known.errors[i] = nb::object(errors.attr(NAMES[i])).release().ptr();
  known.direct = tried(numpy);
}

void raise(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    const std::string text = ours->what();  // which may quote what somebody sent
    const nb::object said =
        nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    PyErr_SetObject(known.errors[static_cast<int>(ours->kind)], said.ptr());
  } else if (dynamic_cast<const std::bad_alloc*>(&error)) {
    PyErr_NoMemory();
  } else {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

bool look(PyObject* value, View& view, bool closely) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != known.array) return false;
  if (!known.direct) return look_slowly(value, view);
  const Layout& array = layout(value);
  if ((array.flags & (IN_ORDER | ALIGNED)) != (IN_ORDER | ALIGNED)) return false;
  view.dtype = dtype_at(array.dtype);
  if (view.dtype == Dtype::None && closely) view.dtype = dtype_like(array.dtype);
  if (view.dtype == Dtype::None) return false;
  view.data = array.data;
  view.axes = static_cast<std::size_t>(array.axes);
  view.shape = reinterpret_cast<const std::size_t*>(array.shape);
  if (!view.shape) {  // of no axes: still a shape
    static const std::size_t nothing = 0;
    view.shape = &nothing;
  }
  view.count = 1;
  for (int i = 0; i < array.axes; ++i) view.count *= static_cast<std::size_t>(array.shape[i]);
  return true;
}

View read(PyObject* value, std::vector<nb::object>& kept, const std::string& label) {
  View view;
  if (look(value, view, true)) return view;
  nb::object array;
  {
    const nb::object order = nb::str("C");
    PyObject* const given[] = {value, order.ptr()};
    array = nb::steal(PyObject_Vectorcall(known.asarray, given, 1, known.order));
  }
  if (!array.is_valid()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError) &&
        !PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_OverflowError))
      throw nb::python_error();
    const nb::python_error cause;
    spec_error(label + ", came a " + Py_TYPE(value)->tp_name + " that is no array: " + nb::str(cause.value()).c_str());
  }
  if (!look(array.ptr(), view, true)) {  // the other order of bytes, or a type that does not travel
    const nb::object dtype = array.attr("dtype");
    array = array.attr("astype")(dtype.attr("newbyteorder")("="), nb::arg("order") = "C");
    if (!look(array.ptr(), view, true))
      spec_error(label + ", came " + nb::str(dtype).c_str() + " of shape " +
                 nb::str(nb::list(nb::object(array.attr("shape")))).c_str() + ": hand over what the spec declares");
  }
  kept.push_back(std::move(array));
  return view;
}

nb::object make(Dtype dtype, const Shape& shape, void** data) {
  nb::object sides = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (std::size_t i = 0; i < shape.size(); ++i)
    PyTuple_SET_ITEM(sides.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromSize_t(shape[i]));
  PyObject* const arguments[] = {sides.ptr(), known.dtypes[static_cast<int>(dtype)]};
  nb::object array = nb::steal(PyObject_Vectorcall(known.empty, arguments, 2, nullptr));
  View view;
  if (!array.is_valid()) throw nb::python_error();
  if (!look(array.ptr(), view)) throw std::runtime_error("NumPy made an array that cannot be looked at");
  *data = const_cast<void*>(view.data);
  return array;
}

nb::object make(const Array& array) {
  void* data = nullptr;
  nb::object made = make(array.dtype, array.shape, &data);
  if (!array.bytes.empty()) std::memcpy(data, array.bytes.data(), array.bytes.size());
  return made;
}

bool mapping(PyObject* value) {
  if (PyDict_Check(value)) return true;
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == known.array || PyList_CheckExact(value)) return false;
  const int answer = PyObject_IsInstance(value, known.mapping);
  if (answer < 0) throw nb::python_error();
  return answer > 0;
}

Named::Named(nb::handle given, const std::string& what) {
  for (const nb::handle key : given) {
    if (!nb::isinstance<nb::str>(key)) spec_error(what + ": expected names as text");
    const std::string name = nb::cast<std::string>(key);
    kept.push_back(given[key]);
    PyObject* value = kept.back().ptr();
    views.emplace_back(name, read(value, kept, what + " '" + name + "'"));
  }
}

View Named::find(const std::string& name) const {
  for (const auto& [known_name, view] : views)
    if (known_name == name) return view;
  return {};
}

}  // namespace farfield::python
