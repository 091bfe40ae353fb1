// A version and its tensors, ready to act with: immutable, shared by all tracks of a policy through one slot.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "farfield/decide.hpp"
#include "farfield/noise.hpp"
#include "farfield/program.hpp"
#include "farfield/spec.hpp"

namespace farfield {

/// What acting with one version needs. Immutable; keep it by std::shared_ptr<const Snapshot>.
class Snapshot {
 public:
  /// Compiles a version; `tensors` may hold more than acting needs. CorruptError where one is missing or misshapen.
  static std::shared_ptr<const Snapshot> make(std::string_view version_json, const Tensors& tensors);
  static std::shared_ptr<const Snapshot> make(Version version, const Tensors& tensors);
  static std::shared_ptr<const Snapshot> make(std::string_view version_json, const Columns& tensors) {
    return make(version_json, tensors_of(tensors));
  }

  std::uint64_t number() const { return version.number; }
  std::uint64_t attempt() const { return version.attempt; }
  /// Whether rows of the other one may stand in one fragment with rows of this one: same values, heads and memory.
  bool like(const Snapshot& other) const { return layout == other.layout && program.like(other.program); }

  const Version version;
  const std::string spec_hash;
  const Program program;  // its outputs are what heads read
  const Heads heads;
  const std::vector<Block> blocks;
  const std::string layout;  // names all that must be alike

  Snapshot(Version version, const Tensors& tensors);  // use make
};

/// The newest snapshot of a policy; any thread may put and look, looking costs one load while nothing changes.
class Slot {
 public:
  void put(std::shared_ptr<const Snapshot> snapshot);
  std::shared_ptr<const Snapshot> get() const;
  /// Counts what was put.
  std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> generation_{0};
  mutable std::mutex mutex_;
  std::shared_ptr<const Snapshot> snapshot_;
};

}  // namespace farfield
