// What a track is inside: its rows, what decides, and where the stream stands. No locks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "farfield/track.hpp"
#include "intake.hpp"
#include "page.hpp"

namespace farfield {

struct Track::Body {
  using Stamp = std::pair<std::uint64_t, std::uint64_t>;  // version and attempt

  Body(std::shared_ptr<Slot> slot, const Spec& spec, Options options, Emit emit);

  void take_up();
  std::size_t place(const std::string& source, Stamp stamp);
  void open(std::size_t k);
  std::size_t decide(std::size_t k, bool greedy);
  void ship(std::size_t rows, bool known);
  void remember(Remembered& into) const;
  void add(std::size_t lane, double amount);
  void end(bool truncated, const View* last);
  void restart(const bool* over, const bool* cut, const View* last);

  const std::shared_ptr<Slot> slot;
  const Spec spec;
  const Options options;
  const Emit emit;
  const std::string spec_hash;
  const std::size_t N;
  const Intake intake;
  Page page;

  std::uint64_t generation = 0;  // of the slot, when it was looked at last
  std::shared_ptr<const Snapshot> snapshot;
  Floats buffers;
  std::vector<std::size_t> sources;  // of the program's inputs, among the observations
  Noise noise;
  std::vector<float> drawn, state, scratch;
  bool simple = false;  // one observation of float32 and one discrete action of one lane

  bool is_open = false;
  std::vector<std::uint8_t> first;  // lanes whose episode begins with the next row
  bool begins = true;               // whether any does
  std::string source;               // of the rows on the page
  Stamp stamp{0, 0};                // of the last row
  bool decided = false;             // whether a version ever did
  Remembered prior;                 // before the last row
  std::uint64_t base = 0, seq = 0;  // decision of row 0; number of the next fragment
  std::uint64_t decision;           // of the last row
  double began = 0;
  std::vector<std::vector<std::uint8_t>> spare;  // a row of each action or observation that is only looked at
  std::vector<std::uint8_t*> spare_rows;
};

}  // namespace farfield
