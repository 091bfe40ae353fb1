// A track as Python calls it: anything like an array in, an action as Python takes it out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "farfield/snapshot.hpp"
#include "farfield/track.hpp"

namespace farfield::python {

struct SnapshotOf {
  std::shared_ptr<const Snapshot> held;
};

struct SlotOf {
  std::shared_ptr<Slot> held = std::make_shared<Slot>();
  nb::object current = nb::none();
};

using Names = std::vector<std::pair<std::string, std::size_t>>;  // by which names a field may be given, and which it is

/// What one call was given: looked at here, and kept as long as the call takes. No two calls share one, since looking
/// may run somebody's Python, which may let another thread in.
class Given {
 public:
  explicit Given(std::size_t count) : many_(count > FEW ? count : 0), views(count > FEW ? many_.data() : few_) {}
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

 private:
  static constexpr std::size_t FEW = 4;  // as many need no memory of their own
  View few_[FEW];
  std::vector<View> many_;

 public:
  View* const views;  // one for each field, without data where nothing came
  std::vector<nb::object> kept;
};

class TrackOf {
 public:
  TrackOf(nb::handle slot, nb::bytes spec, std::string run, std::string policy, std::string actor, std::string stream,
          std::uint64_t seed, std::size_t steps, std::size_t lanes, nb::object emit);

  PyObject* act(PyObject* obs, PyObject* mask, bool greedy);
  void reward(PyObject* amount);
  void end(bool truncated, nb::handle obs, nb::handle mask);
  void restart(nb::handle ended, nb::handle truncated, nb::handle obs, nb::handle mask);
  void record(nb::handle obs, nb::handle action, nb::handle reward, nb::handle mask, const std::string& source);
  void put(nb::handle obs, nb::handle action, nb::handle log_prob, nb::handle memory, std::uint64_t version,
           std::uint64_t attempt, nb::handle mask, const std::string& source);
  bool credit(std::int64_t n, double amount, const std::string& mode);
  std::size_t cut();
  nb::object scores(nb::handle obs, nb::handle mask);
  nb::dict memory() const;
  const Track& track() const { return *track_; }
  const std::string& stream() const { return stream_; }
  double oldest() const;

  /// Hands over what was finished: outside of the track, since this is somebody's Python.
  void deliver();
  nb::object emit_;

 private:
  static constexpr std::size_t NONE = static_cast<std::size_t>(-1);
  std::string expected(const Field& field) const;
  void take(const Field& field, PyObject* value, View& view, Given& given) const;

  /// Puts values that were given by name in their places.
  void by_name(PyObject* values, const Names& names, const std::vector<Field>& fields, Given& given,
               const char* what) const;
  void sort(PyObject* obs, PyObject* mask, Given& given) const;
  void choose(nb::handle action, Given& given) const;
  nb::object decided(const std::vector<nb::object>& arrays, void* const* data) const;
  [[noreturn]] void refuse_number(PyObject* amount) const;
  std::vector<double> amounts(PyObject* amount) const;
  const bool* flags(const char* what, nb::handle value, Given& given) const;

  std::string stream_;
  std::size_t lanes_, single_ = NONE, mask_ = NONE;
  Names observations_, masks_, actions_;
  std::vector<nb::object> keys_;
  std::vector<Shape> shapes_;
  bool choice_ = false;
  std::vector<std::pair<std::string, std::uint64_t>> finished_;
  std::unique_ptr<Track> track_;
};

}  // namespace farfield::python
