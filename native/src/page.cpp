// Rows in, the columns of one fragment out.
#include "page.hpp"

#include <algorithm>
#include <cstring>

namespace farfield {
namespace {

template <class T>
void shift(std::vector<T>& column, std::size_t each, std::size_t rows, std::size_t left) {
  const auto from = column.begin() + static_cast<std::ptrdiff_t>(rows * each);
  if (rows) std::copy(from, from + static_cast<std::ptrdiff_t>(left * each), column.begin());
}

template <class T>
void clear(std::vector<T>& column, std::size_t each, std::size_t from, T value) {
  std::fill(column.begin() + static_cast<std::ptrdiff_t>(from * each), column.end(), value);
}

Shape shaped(std::size_t rows, std::size_t lanes, const Shape& shape) {
  Shape whole{rows, lanes};
  whole.insert(whole.end(), shape.begin(), shape.end());
  return whole;
}

}  // namespace

Page::Page(const Spec& spec, std::size_t steps, std::size_t lanes)
    : T(steps),
      N(lanes),
      reward(T * N),
      terminated(T * N),
      truncated(T * N),
      valid(T * N, 1),
      first(T * N),
      scored(T),
      stamps(T),
      log_prob_(T * N),
      reward_(T * N),
      total_(N),
      length_(N) {
  for (const Field& field : spec.observations)
    seen_.push_back({field.name, field.dtype, field.shape, field.bytes(),
                     std::vector<std::uint8_t>((T + 1) * N * field.bytes() + 1)});
  for (const Field& field : spec.actions)
    acted_.push_back(
        {field.name, field.dtype, field.shape, field.bytes(), std::vector<std::uint8_t>(T * N * field.bytes() + 1)});
  seen_row_.resize(seen_.size());
  acted_row_.resize(acted_.size());
}

std::uint8_t* const* Page::seen(std::size_t k) {
  for (std::size_t i = 0; i < seen_.size(); ++i) seen_row_[i] = seen_[i].data.data() + k * N * seen_[i].bytes;
  return seen_row_.data();
}

std::uint8_t* const* Page::acted(std::size_t k, std::size_t lane) {
  for (std::size_t i = 0; i < acted_.size(); ++i)
    acted_row_[i] = acted_[i].data.data() + (k * N + lane) * acted_[i].bytes;
  return acted_row_.data();
}

void Page::watch(std::size_t width, const Heads* heads) {
  score(count, heads);
  width_ = width;
  values_.assign(T * N * width, 0.0f);
}

void Page::score(std::size_t upto, const Heads* heads) {
  for (std::size_t row = 0; row < upto; ++row) {
    for (std::size_t lane = 0; heads && width_ && !scored[row] && lane < N; ++lane)
      if (valid[row * N + lane])
        log_prob_[row * N + lane] = heads->log_prob(values(row) + lane * width_, acted(row, lane));
    scored[row] = 1;
  }
}

std::vector<Column> Page::finish(std::size_t rows, bool scored_too) {
  std::vector<Column> columns;
  for (const Buffer& one : seen_)
    columns.push_back({one.name, one.dtype, shaped(rows + 1, N, one.shape), one.data.data()});
  for (const Buffer& one : acted_)
    columns.push_back({one.name, one.dtype, shaped(rows, N, one.shape), one.data.data()});
  for (std::size_t i = 0; i < rows * N; ++i) reward_[i] = static_cast<float>(reward[i]);
  columns.push_back({"reward", Dtype::Float32, {rows, N}, reward_.data()});
  columns.push_back({"terminated", Dtype::Bool, {rows, N}, terminated.data()});
  columns.push_back({"truncated", Dtype::Bool, {rows, N}, truncated.data()});
  columns.push_back({"valid", Dtype::Bool, {rows, N}, valid.data()});
  columns.push_back({"first", Dtype::Bool, {rows, N}, first.data()});
  if (scored_too) columns.push_back({"log_prob", Dtype::Float32, {rows, N}, log_prob_.data()});
  if (memory.whose)
    for (const Program::State& state : memory.whose->program.states()) {
      Shape shape{N};
      shape.insert(shape.end(), state.shape.begin(), state.shape.end());
      columns.push_back({"memory/" + state.node, Dtype::Float32, shape, memory.own.data() + N * state.offset});
    }
  for (const auto& [node, array] : memory.given)
    columns.push_back({"memory/" + node, array.dtype, array.shape, array.bytes.data()});
  finals(rows, columns);
  episodes(rows, columns);
  if (std::any_of(stamps.begin() + 1, stamps.begin() + static_cast<std::ptrdiff_t>(rows),
                  [&](const auto& stamp) { return stamp != stamps[0]; })) {
    versions_.resize(rows);
    for (std::size_t row = 0; row < rows; ++row) versions_[row] = static_cast<std::int64_t>(stamps[row].first);
    columns.push_back({"version", Dtype::Int64, {rows}, versions_.data()});
  }
  return columns;
}

void Page::finals(std::size_t rows, std::vector<Column>& columns) {
  index_.clear();
  last_.assign(seen_.size(), {});
  for (const Final& one : finals_) {
    if (one.row >= rows) continue;
    index_.push_back(static_cast<std::int32_t>(one.row));
    index_.push_back(static_cast<std::int32_t>(one.lane));
    const std::uint8_t* from = one.data.data();
    for (std::size_t i = 0; i < seen_.size(); from += seen_[i].bytes, ++i)
      last_[i].insert(last_[i].end(), from, from + seen_[i].bytes);
  }
  if (index_.empty()) return;
  const std::size_t K = index_.size() / 2;
  columns.push_back({"final/index", Dtype::Int32, {K, 2}, index_.data()});
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    Shape shape{K};
    shape.insert(shape.end(), seen_[i].shape.begin(), seen_[i].shape.end());
    columns.push_back({"final/" + seen_[i].name, seen_[i].dtype, shape, last_[i].data()});
  }
}

/// Gives returns and lengths of the episodes that ended, and remembers how far the others are.
void Page::episodes(std::size_t rows, std::vector<Column>& columns) {
  returns_.clear();
  lengths_.clear();
  std::vector<double> sum(N), before(N);
  std::vector<std::int64_t> steps(N), steps_before(N);
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t lane = 0; lane < N; ++lane) {
      const std::size_t at = row * N + lane;
      sum[lane] += static_cast<double>(reward_[at]);
      steps[lane] += valid[at];
      if (!terminated[at] && !truncated[at]) continue;
      const double total = total_[lane] + sum[lane];
      const std::int64_t length = length_[lane] + steps[lane];
      returns_.push_back(static_cast<float>(std::clamp(total - before[lane], -MOST_REWARD, MOST_REWARD)));
      lengths_.push_back(static_cast<std::int32_t>(length - steps_before[lane]));
      before[lane] = total;
      steps_before[lane] = length;
    }
  for (std::size_t lane = 0; lane < N; ++lane) {
    total_[lane] = total_[lane] + sum[lane] - before[lane];
    length_[lane] = length_[lane] + steps[lane] - steps_before[lane];
  }
  columns.push_back({"episode/return", Dtype::Float32, {returns_.size()}, returns_.data()});
  columns.push_back({"episode/length", Dtype::Int32, {lengths_.size()}, lengths_.data()});
}

std::uint64_t Page::valid_steps(std::size_t rows) const {
  return static_cast<std::uint64_t>(
      std::count(valid.begin(), valid.begin() + static_cast<std::ptrdiff_t>(rows * N), 1));
}

void Page::carry(std::size_t rows) {
  const std::size_t left = count - rows;
  for (Buffer& one : seen_) shift(one.data, N * one.bytes, rows, left + 1);
  for (Buffer& one : acted_) shift(one.data, N * one.bytes, rows, left);
  shift(values_, N * width_, rows, left);
  shift(reward, N, rows, left);
  shift(log_prob_, N, rows, left);
  for (auto* column : {&terminated, &truncated, &valid, &first}) shift(*column, N, rows, left);
  shift(scored, 1, rows, left);
  shift(stamps, 1, rows, left);
  clear(reward, N, left, 0.0);
  clear(log_prob_, N, left, 0.0f);
  for (auto* column : {&terminated, &truncated, &first}) clear(*column, N, left, std::uint8_t{0});
  clear(valid, N, left, std::uint8_t{1});
  clear(scored, 1, left, std::uint8_t{0});
  finals_.erase(std::remove_if(finals_.begin(), finals_.end(), [&](const Final& one) { return one.row < rows; }),
                finals_.end());
  for (Final& one : finals_) one.row -= rows;
  count = left;
}

void Page::repeat(std::size_t row) {
  for (Buffer& one : seen_)
    if (one.bytes) std::memcpy(&one.data[row * N * one.bytes], &one.data[(row - 1) * N * one.bytes], N * one.bytes);
}

void Page::rest(std::size_t row) {
  std::fill_n(&valid[row * N], N, std::uint8_t{0});
  for (Buffer& one : acted_)
    std::fill_n(one.data.begin() + static_cast<std::ptrdiff_t>(row * N * one.bytes), N * one.bytes, 0);
  std::fill_n(values_.begin() + static_cast<std::ptrdiff_t>(row * N * width_), N * width_, 0.0f);
  count = row + 1;
}

void Page::last(std::size_t row, std::size_t lane, const std::uint8_t* const* observations) {
  Final one{row, lane, {}};
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const std::uint8_t* from = observations[i] + lane * seen_[i].bytes;
    one.data.insert(one.data.end(), from, from + seen_[i].bytes);
  }
  finals_.push_back(std::move(one));
}

}  // namespace farfield
