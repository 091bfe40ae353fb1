// Rows in, the columns of one fragment out: buffers that are written in place and used again for the next fragment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "farfield/snapshot.hpp"
#include "farfield/wire.hpp"

namespace farfield {

constexpr double MOST_REWARD = 3.4028234663852886e38;  // what 32 bits hold

/// What is remembered before some row: of our own network, or given by whoever decided.
struct Remembered {
  std::shared_ptr<const Snapshot> whose;  // names and shapes of `own`; none: `given`
  std::vector<float> own;
  Columns given;

  void clear() {
    whose.reset();
    given.clear();
  }
};

/// `steps` rows of N lanes. Rows 0 … count - 1 are there; observations have one row more.
class Page {
 public:
  Page(const Spec& spec, std::size_t steps, std::size_t lanes);

  /// Pointers to row k of each observation and each action; good until the next call.
  std::uint8_t* const* seen(std::size_t k);
  std::uint8_t* const* acted(std::size_t k, std::size_t lane = 0);
  float* values(std::size_t k) { return values_.data() + k * N * width_; }
  float* log_prob(std::size_t k) { return log_prob_.data() + k * N; }

  /// Records so many head outputs of each lane from now on; what stands there is scored first.
  void watch(std::size_t width, const Heads* heads);
  /// Works out log-probabilities of the rows before `upto` that have none yet.
  void score(std::size_t upto, const Heads* heads);
  /// Writes the first rows as columns of a payload; the columns point into this page.
  std::vector<Column> finish(std::size_t rows, bool scored);
  /// Counts valid steps of the first rows.
  std::uint64_t valid_steps(std::size_t rows) const;
  /// Forgets the first rows; what is behind them becomes row 0 and so on.
  void carry(std::size_t rows);
  /// Repeats the row before as the observation behind the last row.
  void repeat(std::size_t row);
  /// Makes a row that is no step: it only shows the observation at which an episode was cut off.
  void rest(std::size_t row);
  /// Remembers what a lane saw last when its episode was cut off after a row.
  void last(std::size_t row, std::size_t lane, const std::uint8_t* const* observations);

  const std::size_t T, N;
  std::size_t count = 0;
  std::vector<double> reward;                                             // rounded once, when the fragment is finished
  std::vector<std::uint8_t> terminated, truncated, valid, first, scored;  // the last one for each row
  std::vector<std::pair<std::uint64_t, std::uint64_t>> stamps;            // version and attempt of each row
  Remembered memory;                                                      // before row 0

 private:
  struct Buffer {
    std::string name;
    Dtype dtype;
    Shape shape;        // of one lane
    std::size_t bytes;  // of one lane
    std::vector<std::uint8_t> data;
  };
  struct Final {
    std::size_t row, lane;
    std::vector<std::uint8_t> data;
  };

  void finals(std::size_t rows, std::vector<Column>& columns);
  void episodes(std::size_t rows, std::vector<Column>& columns);

  std::vector<Buffer> seen_, acted_;
  std::vector<std::uint8_t*> seen_row_, acted_row_;
  std::vector<float> values_, log_prob_, reward_;
  std::size_t width_ = 0;
  std::vector<Final> finals_;
  std::vector<double> total_;  // of unfinished episodes before row 0
  std::vector<std::int64_t> length_;
  std::vector<float> returns_;  // these hold what columns point to
  std::vector<std::int32_t> lengths_, index_;
  std::vector<std::vector<std::uint8_t>> last_;
  std::vector<std::int64_t> versions_;
};

}  // namespace farfield
