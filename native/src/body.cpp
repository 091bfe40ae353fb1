// Rows placed, decided, rewarded and ended; fragments shipped whenever a page is full.
#include "body.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <tuple>

#include "farfield/error.hpp"
#include "farfield/wire.hpp"

namespace farfield {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Track::Body::Body(std::shared_ptr<Slot> given, const Spec& told, Options wanted, Emit out)
    : slot(std::move(given)),
      spec(told),
      options(std::move(wanted)),
      emit(std::move(out)),
      spec_hash(spec.hash()),
      N(std::max<std::size_t>(options.lanes, 1)),
      intake(spec, options.lanes),
      page(spec, options.steps, N),
      first(N, 1),
      decision(0 - static_cast<std::uint64_t>(N)) {
  noise_key(options.seed, options.stream);  // refuses a stream that is none
  simple = !options.lanes && spec.observations.size() == 1 && spec.observations[0].dtype == Dtype::Float32 &&
           spec.actions.size() == 1 && spec.actions[0].kind == Field::Kind::Discrete;
  for (const std::vector<Inlet>* inlets : {&intake.observations(), &intake.actions()})
    for (const Inlet& inlet : *inlets) spare.emplace_back(inlet.bytes() + 1);
  for (auto& row : spare) spare_rows.push_back(row.data());
}

/// Goes on with the snapshot that is in the slot.
void Track::Body::take_up() {
  const std::uint64_t seen = slot->generation();
  std::shared_ptr<const Snapshot> next = slot->get();
  if (!next) missing_error("no version has come yet, so nothing can decide: wait for one, or let a fallback decide");
  if (next == snapshot) {
    generation = seen;
    return;
  }
  if (!snapshot || !snapshot->like(*next)) {
    if (next->spec_hash != spec_hash)
      spec_error("version " + std::to_string(next->number()) + " was made for the spec " + next->spec_hash +
                 ", but this track has " + spec_hash + ": connect with the spec of the run");
    std::vector<std::size_t> found;
    for (const Program::Input& input : next->program.inputs()) {
      std::size_t i = 0;
      while (i < spec.observations.size() && spec.observations[i].name != input.column) ++i;
      if (i == spec.observations.size() || spec.observations[i].count() != input.width)
        config_error("the network reads '" + input.column + "' " + text_of(input.shape) +
                     ", which the spec does not declare");
      found.push_back(i);
    }
    Noise other(next->blocks, options.seed, options.stream);
    page.watch(next->program.output_width(), snapshot ? &snapshot->heads : nullptr);
    sources = std::move(found);
    buffers = next->program.buffers(N);
    noise = std::move(other);
    drawn.resize(N * noise.width());
    state.assign(N * next->program.state_width(), 0.0f);
    scratch.resize(N * next->program.output_width());
  }
  snapshot = std::move(next);
  generation = seen;
}

/// Makes room for the row whose observation was just written behind the last one, and gives its number.
std::size_t Track::Body::place(const std::string& who, Stamp now_by) {
  if (page.count == page.T || (page.count && who != source)) ship(page.count, true);
  const std::size_t k = page.count;
  source = who;
  if (!k) {
    began = now();
    page.memory.clear();
  }
  if (begins) {
    std::memcpy(&page.first[k * N], first.data(), N);
    std::fill(first.begin(), first.end(), 0);
    begins = false;
  }
  page.stamps[k] = stamp = now_by;
  return k;
}

void Track::Body::open(std::size_t k) {
  page.count = k + 1;
  is_open = true;
  decision = base + k * N;
}

/// Decides for the observations that stand behind the last row; gives the row.
std::size_t Track::Body::decide(std::size_t k, bool greedy) {
  static const std::string POLICY;
  const Program& program = snapshot->program;
  const bool remembers = program.state_width() > 0;
  if (remembers)
    remember(prior);
  else
    prior.clear();
  k = place(POLICY, {snapshot->number(), snapshot->attempt()});
  if (remembers && !k) page.memory = prior;
  std::uint8_t* const* rows = page.seen(k);
  for (std::size_t i = 0; i < sources.size(); ++i)
    program.fill(buffers, i, N, rows[sources[i]], spec.observations[sources[i]].dtype);
  float* values = page.values(k);
  program.run(buffers, N, prior.own.data(), state.data(), values);
  if (!greedy) noise.draw(base + k * N, N, drawn.data());
  for (std::size_t lane = 0; lane < N; ++lane)
    snapshot->heads.choose(values + lane * program.output_width(),
                           greedy ? nullptr : drawn.data() + lane * noise.width(), page.acted(k, lane));
  open(k);
  decided = true;
  return k;
}

/// What the next decision remembers: nothing in lanes where an episode begins.
void Track::Body::remember(Remembered& into) const {
  into.given.clear();
  into.whose = snapshot;
  into.own.assign(state.begin(), state.end());
  if (!snapshot || !begins) return;
  for (const Program::State& one : snapshot->program.states())
    for (std::size_t lane = 0; lane < N; ++lane)
      if (first[lane])
        std::fill_n(into.own.begin() + static_cast<std::ptrdiff_t>(N * one.offset + lane * one.width), one.width, 0.0f);
}

/// Emits the first rows. What was seen after them is in the next row or, not known, repeated.
void Track::Body::ship(std::size_t rows, bool known) {
  if (source.empty()) page.score(rows, snapshot ? &snapshot->heads : nullptr);
  if (!known) page.repeat(rows);
  const std::vector<Column> columns = page.finish(rows, source.empty());
  Fragment head;
  head.run = options.run;
  head.stream = options.stream;
  head.seq = seq;
  std::tie(head.version, head.attempt) = page.stamps[0];
  head.spec = spec_hash;
  head.decision = base;
  head.policy = options.policy;
  head.actor = options.actor;
  head.source = source;
  std::string payload = encode(head, columns);
  const std::uint64_t steps = page.valid_steps(rows);
  page.carry(rows);
  ++seq;
  base += rows * N;
  if (page.count && source.empty())
    page.memory = prior;
  else
    page.memory.clear();
  began = now();
  emit(std::move(payload), steps);
}

void Track::Body::add(std::size_t lane, double amount) {
  double& reward = page.reward[(page.count - 1) * N + lane];
  const double total = reward + amount;
  if (!(total >= -MOST_REWARD && total <= MOST_REWARD))
    spec_error("reward: expected a finite 32-bit number, came " + text_of(amount) + ", which makes it " +
               text_of(total));
  reward = total;
}

void Track::Body::end(bool truncated, const View* last) {
  if (!is_open) return;
  const std::size_t row = page.count - 1;
  if (truncated) {
    const std::vector<std::uint8_t*> before(page.seen(row), page.seen(row) + spec.observations.size());
    intake.write(last, page.seen(row + 1), before.data());
  }
  for (std::size_t lane = 0; lane < N; ++lane) {
    const std::size_t at = row * N + lane;
    if (!page.terminated[at] && !page.truncated[at]) (truncated ? page.truncated : page.terminated)[at] = 1;
  }
  is_open = false;
  if (truncated) {
    std::fill(first.begin(), first.end(), 0);
    begins = false;
    const std::size_t k = place(std::string(source), stamp);
    if (!k && source.empty()) {
      if (snapshot && snapshot->program.state_width())
        remember(page.memory);
      else
        page.memory = prior;
    }
    page.rest(k);
  }
  std::fill(first.begin(), first.end(), 1);
  begins = true;
  if (page.count == page.T) ship(page.count, false);
}

void Track::Body::restart(const bool* over, const bool* cut, const View* last) {
  if (!options.lanes || !is_open)
    spec_error("restart: expected a batched episode that has acted; end() ends a plain one");
  const std::size_t row = page.count - 1;
  const auto ended = [&](std::size_t lane) {
    return page.terminated[row * N + lane] || page.truncated[row * N + lane];
  };
  bool any = false;
  for (std::size_t lane = 0; cut && lane < N; ++lane) any = any || (cut[lane] && !ended(lane));
  if (any) {
    intake.write(last, spare_rows.data(), page.seen(row));
    for (std::size_t lane = 0; lane < N; ++lane)
      if (cut[lane] && !ended(lane)) page.last(row, lane, spare_rows.data());
  }
  for (std::size_t lane = 0; lane < N; ++lane) {
    const bool only_cut = cut && cut[lane];
    if (!over[lane] && !only_cut) continue;
    if (!ended(lane)) (only_cut ? page.truncated : page.terminated)[row * N + lane] = 1;
    first[lane] = 1;
    begins = true;
  }
}

}  // namespace farfield
