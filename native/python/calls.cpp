// A track as Python calls it: anything like an array in, an action as Python takes it out.
#include "calls.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>

#include "farfield/decide.hpp"
#include "farfield/error.hpp"

namespace farfield::python {
namespace {

void name(Names& names, const std::string& field, const std::string& prefix, std::size_t i) {
  names.emplace_back(field, i);
  if (field.rfind(prefix, 0) == 0) names.emplace_back(field.substr(prefix.size()), i);
}

}  // namespace

TrackOf::TrackOf(nb::handle slot, nb::bytes spec, std::string run, std::string policy, std::string actor,
                 std::string stream, std::uint64_t seed, std::size_t steps, std::size_t lanes, nb::object emit)
    : emit_(std::move(emit)), stream_(stream), lanes_(lanes) {
  Track::Options options{std::move(run), std::move(policy), std::move(actor), std::move(stream), seed, steps, lanes};
  track_ = std::make_unique<Track>(
      nb::cast<SlotOf&>(slot).held, Spec::parse({spec.c_str(), spec.size()}), std::move(options),
      [this](std::string payload, std::uint64_t rows) { finished_.emplace_back(std::move(payload), rows); });
  const Spec& told = track_->spec();
  std::size_t plain = 0, masks = 0;
  for (std::size_t i = 0; i < told.observations.size(); ++i) {
    const std::string& field = told.observations[i].name;
    name(observations_, field, "obs/", i);
    if (field == "mask" || field.rfind("mask/", 0) == 0) {
      name(masks_, field, "mask/", i);
      mask_ = i;
      ++masks;
    } else {
      single_ = i;
      ++plain;
    }
  }
  if (plain != 1) single_ = NONE;
  if (masks != 1) mask_ = NONE;
  for (std::size_t i = 0; i < told.actions.size(); ++i) {
    const Field& field = told.actions[i];
    name(actions_, field.name, "action/", i);
    const std::string& key = field.name;
    keys_.push_back(nb::str((key.rfind("action/", 0) == 0 ? key.substr(7) : key).c_str()));
    shapes_.push_back(field.shape);
    if (lanes) shapes_.back().insert(shapes_.back().begin(), lanes);
  }
  choice_ = !lanes && told.actions.size() == 1 && told.actions[0].kind == Field::Kind::Discrete;
}

PyObject* TrackOf::act(PyObject* obs, PyObject* mask, bool greedy) {
  Given given(track_->spec().observations.size());
  sort(obs, mask, given);
  nb::object made;
  if (choice_) {
    std::uint64_t room[2] = {};
    void* out = room;
    track_->act(given.views, greedy, &out);
    made = nb::steal(PyLong_FromLongLong(
        load_integer(track_->spec().actions[0].dtype, reinterpret_cast<const std::uint8_t*>(room), 0)));
  } else {
    std::vector<nb::object> arrays;
    std::vector<void*> data(shapes_.size());
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      arrays.push_back(make(track_->spec().actions[i].dtype, shapes_[i], &data[i]));
    track_->act(given.views, greedy, data.data());
    made = decided(arrays, data.data());
  }
  deliver();
  return made.release().ptr();
}

void TrackOf::reward(PyObject* amount) {
  if (!lanes_) {
    double value = 0;
    if (PyFloat_CheckExact(amount)) {
      value = PyFloat_AS_DOUBLE(amount);
    } else {
      const nb::object number = nb::steal(PyNumber_Float(amount));
      if (!number.is_valid()) refuse_number(amount);
      value = PyFloat_AS_DOUBLE(number.ptr());
    }
    track_->reward(value);
    return;
  }
  std::vector<double> values = amounts(amount);
  track_->reward(values.data(), values.size());
}

void TrackOf::end(bool truncated, nb::handle obs, nb::handle mask) {
  Given given(track_->spec().observations.size());
  if (truncated && !obs.is_none()) sort(obs.ptr(), mask.ptr(), given);
  track_->end(truncated, given.views);
  deliver();
}

void TrackOf::restart(nb::handle ended, nb::handle truncated, nb::handle obs, nb::handle mask) {
  if (!lanes_) spec_error("restart: expected a batched episode that has acted; end() ends a plain one");
  Given given(track_->spec().observations.size());
  const bool* over = flags("ended", ended, given);
  const bool* cut = truncated.is_none() ? nullptr : flags("truncated", truncated, given);
  if (!obs.is_none()) sort(obs.ptr(), mask.ptr(), given);
  track_->restart(over, cut, given.views);
  deliver();
}

void TrackOf::record(nb::handle obs, nb::handle action, nb::handle reward, nb::handle mask, const std::string& source) {
  if (source.empty()) spec_error("record: source: expected who decided, such as \"person\" or \"host\", came nothing");
  Given given(track_->spec().observations.size()), chosen(track_->spec().actions.size());
  sort(obs.ptr(), mask.ptr(), given);
  choose(action, chosen);
  const std::vector<double> values = amounts(reward.ptr());
  track_->record(given.views, chosen.views, values.data(), values.size(), source);
  deliver();
}

void TrackOf::put(nb::handle obs, nb::handle action, nb::handle log_prob, nb::handle memory, std::uint64_t version,
                  std::uint64_t attempt, nb::handle mask, const std::string& source) {
  Given given(track_->spec().observations.size()), chosen(track_->spec().actions.size());
  sort(obs.ptr(), mask.ptr(), given);
  choose(action, chosen);
  std::vector<float> scores(std::max<std::size_t>(lanes_, 1), 0.0f);
  if (!log_prob.is_none()) {
    given.kept.push_back(nb::module_::import_("numpy").attr("asarray")(log_prob, "float32"));
    PyObject* array = given.kept.back().ptr();
    const View view = read(array, given.kept, "log_prob: expected numbers");
    if (view.count != 1 && view.count != scores.size())
      spec_error("log_prob: expected " + std::to_string(scores.size()) + " numbers, one for each lane, came " +
                 std::to_string(view.count));
    for (std::size_t lane = 0; lane < scores.size(); ++lane)
      scores[lane] = static_cast<const float*>(view.data)[view.count == 1 ? 0 : lane];
  }
  Columns states;
  if (!memory.is_none()) {
    const Named named(memory, "memory");
    for (const auto& [node, view] : named.views) {
      Array array(view.dtype, Shape(view.shape, view.shape + view.axes));
      if (!array.bytes.empty()) std::memcpy(array.bytes.data(), view.data, array.bytes.size());
      states.emplace_back(node, std::move(array));
    }
  }
  track_->put(given.views, chosen.views, scores.data(), memory.is_none() ? nullptr : &states, version, attempt, source);
  deliver();
}

bool TrackOf::credit(std::int64_t n, double amount, const std::string& mode) {
  if (mode != "add" && mode != "set") spec_error("credit: expected the mode add or set, came '" + mode + "'");
  return n >= 0 && track_->credit(static_cast<std::uint64_t>(n), amount, mode == "set");
}

std::size_t TrackOf::cut() {
  const std::size_t rows = track_->cut();
  deliver();
  return rows;
}

nb::object TrackOf::scores(nb::handle obs, nb::handle mask) {
  Given given(track_->spec().observations.size());
  sort(obs.ptr(), mask.ptr(), given);
  const std::vector<float> found = track_->scores(given.views);
  return make(Array::of<float>({found.size()}, found));
}

nb::dict TrackOf::memory() const {
  nb::dict found;
  for (const auto& [node, array] : track_->memory()) found[node.c_str()] = make(array);
  return found;
}

double TrackOf::oldest() const {
  const double since = track_->oldest();
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return since > 0 ? now - since : 0.0;
}

void TrackOf::deliver() {
  if (finished_.empty()) return;
  auto all = std::exchange(finished_, {});
  for (std::size_t i = 0; i < all.size(); ++i) {
    try {
      emit_(nb::bytes(all[i].first.data(), all[i].first.size()), all[i].second);
    } catch (...) {  // what is behind it is handed over by the next call
      finished_.insert(finished_.begin(), std::make_move_iterator(all.begin() + static_cast<std::ptrdiff_t>(i) + 1),
                       std::make_move_iterator(all.end()));
      throw;
    }
  }
}

std::string TrackOf::expected(const Field& field) const {
  Shape shape = field.shape;
  if (lanes_) shape.insert(shape.begin(), lanes_);
  return "'" + field.name + "': expected " + name_of(field.dtype) + " of shape " + text_of(shape);
}

void TrackOf::take(const Field& field, PyObject* value, View& view, Given& given) const {
  if (!look(value, view)) view = read(value, given.kept, expected(field));
}

void TrackOf::by_name(PyObject* values, const Names& names, const std::vector<Field>& fields, Given& given,
                      const char* what) const {
  const nb::handle came(values);
  for (const nb::handle key : came) {
    std::size_t i = NONE;
    const nb::str text(key);
    for (const auto& [known, place] : names)
      if (std::strcmp(known.c_str(), text.c_str()) == 0) i = place;
    if (i == NONE) {
      nb::list all;
      for (const auto& [known, place] : names) all.append(nb::str(known.c_str()));
      const nb::object hint = nb::module_::import_("farfield.errors").attr("nearest")(text, all);
      spec_error(std::string(what) + " " + nb::repr(key).c_str() + " is not in the spec; " +
                 nb::cast<std::string>(hint));
    }
    given.kept.push_back(came[key]);
    PyObject* value = given.kept.back().ptr();
    take(fields[i], value, given.views[i], given);
  }
}

void TrackOf::sort(PyObject* obs, PyObject* mask, Given& given) const {
  const std::vector<Field>& fields = track_->spec().observations;
  if (single_ != NONE && !mapping(obs)) {
    take(fields[single_], obs, given.views[single_], given);
  } else if (mapping(obs)) {
    by_name(obs, observations_, fields, given, "observation");
  } else {
    std::string names;
    for (const Field& field : fields)
      if (field.name != "mask" && field.name.rfind("mask/", 0) != 0)
        names += (names.empty() ? "'" : ", '") + field.name + "'";
    spec_error("observation: expected a dict with [" + names + "], came " + Py_TYPE(obs)->tp_name);
  }
  if (!mask || mask == Py_None) return;
  if (mapping(mask)) {
    by_name(mask, masks_, fields, given, "mask");
  } else if (mask_ != NONE) {
    take(fields[mask_], mask, given.views[mask_], given);
  } else {
    const char* cure = masks_.empty() ? "none, since the spec declares none" : "a dict with one for each action";
    spec_error(std::string("mask: expected ") + cure + ", came " + Py_TYPE(mask)->tp_name);
  }
}

void TrackOf::choose(nb::handle action, Given& given) const {
  const std::vector<Field>& fields = track_->spec().actions;
  if (mapping(action.ptr())) {
    by_name(action.ptr(), actions_, fields, given, "action");
  } else if (fields.size() == 1) {
    take(fields[0], action.ptr(), given.views[0], given);
  } else {
    spec_error(std::string("action: expected a dict with one for each field, came ") + Py_TYPE(action.ptr())->tp_name);
  }
}

nb::object TrackOf::decided(const std::vector<nb::object>& arrays, void* const* data) const {
  nb::dict named;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    nb::object value = arrays[i];
    const Field& field = track_->spec().actions[i];
    if (!lanes_ && field.kind == Field::Kind::Discrete)
      value = nb::steal(PyLong_FromLongLong(load_integer(field.dtype, static_cast<const std::uint8_t*>(data[i]), 0)));
    if (arrays.size() == 1) return value;
    named[keys_[i]] = value;
  }
  return named;
}

void TrackOf::refuse_number(PyObject* amount) const {
  if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError)) throw nb::python_error();
  PyErr_Clear();
  const std::string expected = lanes_ ? std::to_string(lanes_) + " numbers, one for each lane" : "a number";
  spec_error("reward: expected " + expected + ", came " + nb::repr(nb::handle(amount)).c_str());
}

std::vector<double> TrackOf::amounts(PyObject* amount) const {
  nb::object array;
  try {
    array = nb::module_::import_("numpy").attr("asarray")(nb::handle(amount), "float64");
  } catch (nb::python_error& error) {
    error.restore();
    refuse_number(amount);
  }
  std::vector<nb::object> kept;
  const View view = read(array.ptr(), kept, "reward: expected numbers");
  if (view.axes != (lanes_ ? 1u : 0u) || view.count != std::max<std::size_t>(lanes_, 1)) {
    const std::string expected = lanes_ ? std::to_string(lanes_) + " numbers, one for each lane" : "a number";
    spec_error("reward: expected " + expected + ", came shape " + text_of(Shape(view.shape, view.shape + view.axes)));
  }
  const double* data = static_cast<const double*>(view.data);
  return std::vector<double>(data, data + view.count);
}

const bool* TrackOf::flags(const char* what, nb::handle value, Given& given) const {
  const std::string label = std::string(what) + ": expected bool of shape [" + std::to_string(lanes_) + "]";
  const View view = read(value.ptr(), given.kept, label);
  if (view.dtype != Dtype::Bool || view.axes != 1 || view.count != lanes_)
    spec_error(label + ", came " + name_of(view.dtype) + " of shape " +
               text_of(Shape(view.shape, view.shape + view.axes)));
  return static_cast<const bool*>(view.data);
}

}  // namespace farfield::python
