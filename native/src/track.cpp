// Observations, rewards and ends of one stream in; actions at once, and encoded fragments whenever one is full, out.
#include "farfield/track.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#include "farfield/error.hpp"
#include "farfield/wire.hpp"
#include "intake.hpp"
#include "page.hpp"

namespace farfield {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string shown(double amount) { return text_of(amount); }

}  // namespace

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
        config_error("the network reads '" + input.column + "' " + text_of(input.shape) + ", which the spec does not declare");
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
  if (remembers) remember(prior);
  else prior.clear();
  k = place(POLICY, {snapshot->number(), snapshot->attempt()});
  if (remembers && !k) page.memory = prior;
  std::uint8_t* const* rows = page.seen(k);
  for (std::size_t i = 0; i < sources.size(); ++i)
    program.fill(buffers, i, N, rows[sources[i]], spec.observations[sources[i]].dtype);
  float* values = page.values(k);
  program.run(buffers, N, prior.own.data(), state.data(), values);
  if (!greedy) noise.draw(base + k * N, N, drawn.data());
  for (std::size_t lane = 0; lane < N; ++lane)
    snapshot->heads.choose(values + lane * program.output_width(), greedy ? nullptr : drawn.data() + lane * noise.width(),
                           page.acted(k, lane));
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
      if (first[lane]) std::fill_n(into.own.begin() + static_cast<std::ptrdiff_t>(N * one.offset + lane * one.width), one.width, 0.0f);
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
  if (page.count && source.empty()) page.memory = prior;
  else page.memory.clear();
  began = now();
  emit(std::move(payload), steps);
}

void Track::Body::add(std::size_t lane, double amount) {
  double& reward = page.reward[(page.count - 1) * N + lane];
  const double total = reward + amount;
  if (!(total >= -MOST_REWARD && total <= MOST_REWARD))
    spec_error("reward: expected a finite 32-bit number, came " + shown(amount) + ", which makes it " + shown(total));
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
      if (snapshot && snapshot->program.state_width()) remember(page.memory);
      else page.memory = prior;
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
  const auto ended = [&](std::size_t lane) { return page.terminated[row * N + lane] || page.truncated[row * N + lane]; };
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

Track::Track(std::shared_ptr<Slot> slot, const Spec& spec, Options options, Emit emit) {
  if (!slot) config_error("a track needs a slot to look at");
  if (!options.steps) config_error("a track needs steps of 1 or more");
  if (spec.observations.empty() || spec.actions.empty())
    config_error("a track needs at least one observation and one action; the spec lacks them");
  body_ = std::make_unique<Body>(std::move(slot), spec, std::move(options), std::move(emit));
}

Track::~Track() = default;

void Track::act(const View* observations, bool greedy, void* const* actions) {
  const std::lock_guard<std::mutex> hold(mutex_);
  Body& body = *body_;
  if (body.slot->generation() != body.generation || !body.snapshot) body.take_up();
  body.intake.write(observations, body.page.seen(body.page.count), nullptr);
  const std::size_t k = body.decide(body.page.count, greedy);
  std::uint8_t* const* rows = body.page.acted(k);
  for (std::size_t i = 0; actions && i < body.spec.actions.size(); ++i) {
    const std::size_t size = body.intake.actions()[i].bytes();
    if (size) std::memcpy(actions[i], rows[i], size);
  }
}

std::int64_t Track::act(const float* observation, std::size_t count, bool greedy) {
  const std::lock_guard<std::mutex> hold(mutex_);
  Body& body = *body_;
  if (!body.simple)
    spec_error("act: this form takes one observation of float32 and gives one discrete action of one lane");
  if (body.slot->generation() != body.generation || !body.snapshot) body.take_up();
  const View view(observation, count);
  body.intake.write(&view, body.page.seen(body.page.count), nullptr);
  const std::size_t k = body.decide(body.page.count, greedy);
  return load_integer(body.spec.actions[0].dtype, body.page.acted(k)[0], 0);
}

void Track::reward(double amount) {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (!body_->is_open) spec_error("reward: no decision waits for one; act first, or credit the decision that it is for");
  for (std::size_t lane = 0; lane < body_->N; ++lane) body_->add(lane, amount);
}

void Track::reward(const double* amounts, std::size_t lanes) {
  const std::lock_guard<std::mutex> hold(mutex_);
  Body& body = *body_;
  if (!body.is_open) spec_error("reward: no decision waits for one; act first, or credit the decision that it is for");
  if (lanes != body.N)
    spec_error("reward: expected " + std::to_string(body.N) + " numbers, one for each lane, came " + std::to_string(lanes));
  const double* now_there = &body.page.reward[(body.page.count - 1) * body.N];
  for (std::size_t lane = 0; lane < lanes; ++lane)  // all or nothing
    if (!(std::abs(now_there[lane] + amounts[lane]) <= MOST_REWARD))
      spec_error("reward: expected finite 32-bit numbers, came " + shown(amounts[lane]) + " for lane " + std::to_string(lane));
  for (std::size_t lane = 0; lane < lanes; ++lane) body.add(lane, amounts[lane]);
}

void Track::end(bool truncated, const View* last) {
  const std::lock_guard<std::mutex> hold(mutex_);
  body_->end(truncated, last);
}

void Track::restart(const bool* ended, const bool* truncated, const View* last) {
  const std::lock_guard<std::mutex> hold(mutex_);
  body_->restart(ended, truncated, last);
}

void Track::record(const View* observations, const View* actions, const double* reward, std::size_t rewards,
                   const std::string& source) {
  if (source.empty()) spec_error("record: source: expected who decided, such as \"person\" or \"host\", came nothing");
  const std::lock_guard<std::mutex> hold(mutex_);
  Body& body = *body_;
  std::uint8_t* const* chosen = body.spare_rows.data() + body.spec.observations.size();
  body.intake.write(observations, body.page.seen(body.page.count), nullptr);
  body.intake.choice(actions, chosen);
  body.intake.permit(body.page.seen(body.page.count), chosen);
  if (rewards != body.N)
    spec_error("reward: expected " + std::to_string(body.N) + " numbers, one for each lane, came " + std::to_string(rewards));
  for (std::size_t lane = 0; lane < body.N; ++lane)
    if (!(std::abs(reward[lane]) <= MOST_REWARD))
      spec_error("reward: expected finite 32-bit numbers, came " + shown(reward[lane]));
  const std::size_t k = body.place(source, body.stamp);
  std::uint8_t* const* rows = body.page.acted(k);
  for (std::size_t i = 0; i < body.spec.actions.size(); ++i)
    std::memcpy(rows[i], chosen[i], body.intake.actions()[i].bytes());
  std::copy_n(reward, body.N, &body.page.reward[k * body.N]);
  body.open(k);
}

void Track::put(const View* observations, const View* actions, const float* log_prob, const Columns* memory,
                std::uint64_t version, std::uint64_t attempt, const std::string& source) {
  const std::lock_guard<std::mutex> hold(mutex_);
  Body& body = *body_;
  std::uint8_t* const* chosen = body.spare_rows.data() + body.spec.observations.size();
  body.intake.write(observations, body.page.seen(body.page.count), nullptr);
  body.intake.choice(actions, chosen);
  const std::size_t k = body.place(source, {version, attempt});
  body.decided = true;
  body.prior.clear();
  if (memory) body.prior.given = *memory;
  if (!k && source.empty()) body.page.memory = body.prior;
  body.page.score(k, body.snapshot ? &body.snapshot->heads : nullptr);
  for (std::size_t lane = 0; lane < body.N; ++lane) body.page.log_prob(k)[lane] = log_prob ? log_prob[lane] : 0.0f;
  body.page.scored[k] = 1;
  std::uint8_t* const* rows = body.page.acted(k);
  for (std::size_t i = 0; i < body.spec.actions.size(); ++i)
    std::memcpy(rows[i], chosen[i], body.intake.actions()[i].bytes());
  body.open(k);
}

bool Track::credit(std::uint64_t n, double amount, bool set) {
  const std::lock_guard<std::mutex> hold(mutex_);
  Body& body = *body_;
  const std::uint64_t at = n - body.base;
  if (n < body.base || at / body.N >= body.page.count || !body.page.valid[at]) return false;
  const double total = set ? amount : body.page.reward[at] + amount;
  if (!(std::abs(total) <= MOST_REWARD))
    spec_error("credit: expected a finite 32-bit number, came " + shown(amount) + ", which makes it " + shown(total));
  body.page.reward[at] = total;
  return true;
}

std::size_t Track::cut() {
  const std::lock_guard<std::mutex> hold(mutex_);
  const std::size_t rows = body_->page.count - (body_->is_open ? 1 : 0);
  if (rows) body_->ship(rows, body_->is_open);
  return rows;
}

std::vector<float> Track::scores(const View* observations) const {
  const std::lock_guard<std::mutex> hold(mutex_);
  Body& body = *body_;
  if (body.slot->generation() != body.generation || !body.snapshot) body.take_up();
  body.intake.write(observations, body.spare_rows.data(), nullptr);
  const Program& program = body.snapshot->program;
  for (std::size_t i = 0; i < body.sources.size(); ++i)
    program.fill(body.buffers, i, body.N, body.spare_rows[body.sources[i]], body.spec.observations[body.sources[i]].dtype);
  Remembered before;
  body.remember(before);
  program.run(body.buffers, body.N, before.own.data(), before.own.data(), body.scratch.data());
  return body.snapshot->heads.scores(body.scratch.data());
}

Columns Track::memory() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  Columns found;
  Remembered now_there;
  body_->remember(now_there);
  for (std::size_t i = 0; body_->snapshot && i < body_->snapshot->program.states().size(); ++i) {
    const Program::State& state = body_->snapshot->program.states()[i];
    Shape shape{body_->N};
    shape.insert(shape.end(), state.shape.begin(), state.shape.end());
    Array array(Dtype::Float32, shape);
    if (!array.bytes.empty()) std::memcpy(array.bytes.data(), now_there.own.data() + body_->N * state.offset, array.bytes.size());
    found.emplace_back(state.node, std::move(array));
  }
  return found;
}

std::uint64_t Track::decision() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  return body_->decision;
}

std::uint64_t Track::seq() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  return body_->seq;
}

std::size_t Track::rows() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  return body_->page.count;
}

double Track::oldest() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  return body_->page.count ? body_->began : 0.0;
}

std::int64_t Track::version() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  return body_->decided ? static_cast<std::int64_t>(body_->stamp.first) : -1;
}

const Spec& Track::spec() const { return body_->spec; }
std::size_t Track::lanes() const { return body_->options.lanes; }

}  // namespace farfield
