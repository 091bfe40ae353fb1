// The calls of a track: each locks, checks what came, and leaves the rest to its body.
#include "farfield/track.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "body.hpp"
#include "farfield/error.hpp"

namespace farfield {

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
  if (!body_->is_open)
    spec_error("reward: no decision waits for one; act first, or credit the decision that it is for");
  for (std::size_t lane = 0; lane < body_->N; ++lane) body_->add(lane, amount);
}

void Track::reward(const double* amounts, std::size_t lanes) {
  const std::lock_guard<std::mutex> hold(mutex_);
  Body& body = *body_;
  if (!body.is_open) spec_error("reward: no decision waits for one; act first, or credit the decision that it is for");
  if (lanes != body.N)
    spec_error("reward: expected " + std::to_string(body.N) + " numbers, one for each lane, came " +
               std::to_string(lanes));
  const double* now_there = &body.page.reward[(body.page.count - 1) * body.N];
  for (std::size_t lane = 0; lane < lanes; ++lane)  // all or nothing
    if (!(std::abs(now_there[lane] + amounts[lane]) <= MOST_REWARD))
      spec_error("reward: expected finite 32-bit numbers, came " + text_of(amounts[lane]) + " for lane " +
                 std::to_string(lane));
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
    spec_error("reward: expected " + std::to_string(body.N) + " numbers, one for each lane, came " +
               std::to_string(rewards));
  for (std::size_t lane = 0; lane < body.N; ++lane)
    if (!(std::abs(reward[lane]) <= MOST_REWARD))
      spec_error("reward: expected finite 32-bit numbers, came " + text_of(reward[lane]));
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
    spec_error("credit: expected a finite 32-bit number, came " + text_of(amount) + ", which makes it " +
               text_of(total));
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
    program.fill(body.buffers, i, body.N, body.spare_rows[body.sources[i]],
                 body.spec.observations[body.sources[i]].dtype);
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
    if (!array.bytes.empty())
      std::memcpy(array.bytes.data(), now_there.own.data() + body_->N * state.offset, array.bytes.size());
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
