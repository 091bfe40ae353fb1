// Observations and rewards of one episode in, actions out: by the newest version or, before the first, by the fallback.
#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "fallback.hpp"
#include "inside.hpp"

namespace farfield {

namespace {

const std::string kFallback = "fallback";

std::int64_t read_choice(Dtype dtype, const void* at) {
  switch (dtype) {
    case Dtype::Bool:
    case Dtype::Uint8: return *static_cast<const std::uint8_t*>(at);
    case Dtype::Int8: return *static_cast<const std::int8_t*>(at);
    case Dtype::Int16: return *static_cast<const std::int16_t*>(at);
    case Dtype::Int32: return *static_cast<const std::int32_t*>(at);
    case Dtype::Uint16: return *static_cast<const std::uint16_t*>(at);
    case Dtype::Uint32: return *static_cast<const std::uint32_t*>(at);
    case Dtype::Uint64: return static_cast<std::int64_t>(*static_cast<const std::uint64_t*>(at));
    default: return *static_cast<const std::int64_t*>(at);
  }
}

bool named(const Field& field, std::string_view name, std::string_view prefix) {
  const std::string_view whole = field.name;
  if (whole == name) return true;
  return whole.size() == prefix.size() + name.size() && whole.substr(0, prefix.size()) == prefix &&
         whole.substr(prefix.size()) == name;
}

// Puts what came by name into the order of the spec.
void sort(const std::vector<Field>& fields, std::string_view prefix, const Named* came, std::size_t count,
          std::vector<View>& out) {
  std::fill(out.begin(), out.end(), View());
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t at = 0;
    while (at < fields.size() && !named(fields[at], came[i].name, prefix)) ++at;
    if (at == fields.size()) {
      spec_error("'" + std::string(came[i].name) + "' is not in the spec; it declares '" + fields[0].name + "'" +
                 (fields.size() > 1 ? " and " + std::to_string(fields.size() - 1) + " more" : ""));
    }
    out[at] = came[i].value;
  }
  for (std::size_t at = 0; at < fields.size(); ++at) {
    if (!out[at].data) spec_error("'" + fields[at].name + "' is missing: hand it over with every decision");
  }
}

}  // namespace

struct Episode::Body {
  Body(std::shared_ptr<Inside> shared, std::size_t lanes, bool greedy);

  void choose();
  void pace() const {
    if (inside->options.pace) inside->yield_turn(*seat);
  }
  void end(bool truncated, const View* last);
  void expect(std::size_t observations, std::size_t actions, const char* cure) const;

  const std::shared_ptr<Inside> inside;
  const Spec& spec;
  const std::size_t lanes;
  const bool greedy;
  std::shared_ptr<Seat> seat;
  Track* track;
  Chooser chooser;
  std::vector<std::vector<std::uint64_t>> room;  // for the actions; words, so that every type is aligned
  std::vector<void*> actions;
  std::vector<View> seen, chosen;  // in the order of the spec
  bool simple;                     // one observation of float32, one choice, one lane
  bool open = false;               // something was decided since the last end
  int exceptions = std::uncaught_exceptions();
};

Episode::Body::Body(std::shared_ptr<Inside> shared, std::size_t count, bool best)
    : inside(std::move(shared)),
      spec(inside->options.spec),
      lanes(count),
      greedy(best),
      seat(inside->sit(count)),
      track(seat->track.get()),
      chooser(spec, inside->options.fallback, count, std::stoull(seat->stream.substr(0, 15), nullptr, 16)),
      seen(spec.observations.size()),
      chosen(spec.actions.size()) {
  for (std::size_t f = 0; f < spec.actions.size(); ++f) {
    const Field& field = spec.actions[f];
    const std::size_t elements = field.count() * std::max<std::size_t>(lanes, 1);
    room.emplace_back(elements * size_of(field.dtype) / 8 + 1);
    actions.push_back(room.back().data());
    chosen[f] = View(actions[f], field.dtype, elements);
  }
  const Field& first = spec.observations[0];
  simple = lanes == 0 && spec.observations.size() == 1 && spec.actions.size() == 1 && first.dtype == Dtype::Float32 &&
           spec.actions[0].kind == Field::Kind::Discrete;
}

// Decides for what stands in `seen`.
void Episode::Body::choose() {
  pace();
  if (inside->slot->generation() != 0) {
    track->act(seen.data(), greedy, actions.data());
  } else {
    static constexpr double kNothing = 0.0;
    chooser.choose(seen.data(), actions.data());
    track->record(seen.data(), chosen.data(), &kNothing, 1, kFallback);
    add(inside->tally.fallbacks, std::max<std::size_t>(lanes, 1));
  }
  open = true;
  add(inside->tally.acted, std::max<std::size_t>(lanes, 1));
}

void Episode::Body::end(bool truncated, const View* last) {
  track->end(truncated, last);
  open = false;
  add(inside->tally.episodes, std::max<std::size_t>(lanes, 1));
  if (!inside->outdated(*seat)) return;
  inside->leave(seat);  // the run told its seed and steps since: go on with a stream that has them
  seat = inside->sit(lanes);
  track = seat->track.get();
}

void Episode::Body::expect(std::size_t observations, std::size_t count, const char* cure) const {
  if (spec.observations.size() == observations && spec.actions.size() == count) return;
  spec_error("this call takes " + std::to_string(observations) + " observation and " + std::to_string(count) +
             " action field, the spec declares " + std::to_string(spec.observations.size()) + " and " +
             std::to_string(spec.actions.size()) + ": use " + cure);
}

Episode::Episode(std::unique_ptr<Body> body) : body_(std::move(body)) {}
Episode::Episode(Episode&& other) noexcept = default;

Episode& Episode::operator=(Episode&& other) noexcept {
  std::swap(body_, other.body_);
  return *this;
}

Episode::~Episode() {
  if (!body_) return;
  try {
    if (body_->open) body_->end(std::uncaught_exceptions() > body_->exceptions, nullptr);
    body_->inside->leave(body_->seat);
  } catch (const std::exception& error) {
    body_->inside->note_trouble(error.what());
  }
}

int Episode::act(const float* observation, std::size_t count) {
  Body& body = *body_;
  if (body.simple && body.inside->slot->generation() != 0) {
    body.pace();
    const auto action = body.track->act(observation, count, body.greedy);
    body.open = true;
    add(body.inside->tally.acted);
    return static_cast<int>(action);
  }
  body.expect(1, 1, "decide with each field by its name, or act with a mask");
  body.seen[0] = View(observation, count);
  body.choose();
  return static_cast<int>(read_choice(body.spec.actions[0].dtype, body.actions[0]));
}

int Episode::act(const float* observation, std::size_t count, const bool* mask, std::size_t choices) {
  Body& body = *body_;
  body.expect(2, 1, "decide with each field by its name");
  const std::size_t masked = body.spec.observations[0].name.rfind("mask", 0) == 0 ? 0 : 1;
  body.seen[1 - masked] = View(observation, count);
  body.seen[masked] = View(mask, choices);
  body.choose();
  return static_cast<int>(read_choice(body.spec.actions[0].dtype, body.actions[0]));
}

void Episode::decide(Inputs observations) { decide(observations.begin(), observations.size()); }

void Episode::decide(const Named* observations, std::size_t count) {
  sort(body_->spec.observations, "obs/", observations, count, body_->seen);
  body_->choose();
}

void Episode::act(View observation, void* action, std::size_t bytes) { act(observation, View(), action, bytes); }

void Episode::act(View observation, View mask, void* action, std::size_t bytes) {
  Body& body = *body_;
  body.expect(mask.data ? 2 : 1, 1, "decide with each field by its name");
  const std::size_t masked = mask.data && body.spec.observations[0].name.rfind("mask", 0) == 0 ? 0 : 1;
  const std::size_t size = body.chosen[0].count * size_of(body.chosen[0].dtype);
  if (bytes != size) {
    spec_error("'" + body.spec.actions[0].name + "' takes " + std::to_string(size) + " bytes of " +
               name_of(body.chosen[0].dtype) + ", came a buffer of " + std::to_string(bytes));
  }
  body.seen[mask.data ? 1 - masked : 0] = observation;
  if (mask.data) body.seen[masked] = mask;
  body.choose();
  std::copy_n(static_cast<const unsigned char*>(body.actions[0]), size, static_cast<unsigned char*>(action));
}

const void* Episode::action(std::size_t field) const {
  if (field >= body_->actions.size()) spec_error("action " + std::to_string(field) + ": the spec declares fewer");
  return body_->actions[field];
}

void Episode::check_action(std::size_t field, Dtype wanted) const {
  if (field < body_->spec.actions.size() && body_->spec.actions[field].dtype != wanted) {
    spec_error("'" + body_->spec.actions[field].name + "' is " + name_of(body_->spec.actions[field].dtype) +
               ", asked for as " + name_of(wanted));
  }
}

void Episode::reward(double amount) { body_->track->reward(amount); }
void Episode::reward(const double* amounts, std::size_t lanes) { body_->track->reward(amounts, lanes); }

void Episode::end(bool truncated) { body_->end(truncated, nullptr); }

void Episode::end(bool truncated, const float* last, std::size_t count) {
  const std::size_t fields = body_->spec.observations.size();
  const std::size_t masked = fields == 2 && body_->spec.observations[0].name.rfind("mask", 0) == 0 ? 0 : 1;
  if (fields > 2 || (fields == 2 && body_->spec.observations[masked].name.rfind("mask", 0) != 0)) {
    spec_error("the spec declares " + std::to_string(fields) + " observations: hand over each by its name");
  }
  if (fields == 2) {  // nothing is decided there: everything is allowed
    const Field& field = body_->spec.observations[masked];
    const std::vector<std::uint8_t> all(field.count() * std::max<std::size_t>(body_->lanes, 1), 1);
    body_->seen[1 - masked] = View(last, count);
    body_->seen[masked] = View(all.data(), Dtype::Bool, all.size());
    return body_->end(truncated, body_->seen.data());
  }
  body_->seen[0] = View(last, count);
  body_->end(truncated, body_->seen.data());
}

void Episode::end(bool truncated, Inputs last) { end(truncated, last.begin(), last.size()); }

void Episode::end(bool truncated, const Named* last, std::size_t count) {
  if (count == 0) return body_->end(truncated, nullptr);
  sort(body_->spec.observations, "obs/", last, count, body_->seen);
  body_->end(truncated, body_->seen.data());
}

void Episode::restart(const bool* ended, const bool* truncated, Inputs last) {
  if (last.size() > 0) sort(body_->spec.observations, "obs/", last.begin(), last.size(), body_->seen);
  body_->track->restart(ended, truncated, last.size() > 0 ? body_->seen.data() : nullptr);
  const auto over = static_cast<std::uint64_t>(std::count(ended, ended + body_->lanes, true));
  add(body_->inside->tally.episodes, over);
  if (over == body_->lanes) body_->open = false;
}

void Episode::record(const float* observation, std::size_t count, std::int64_t action, double reward,
                     const std::string& source) {
  body_->expect(1, 1, "record with each field by its name");
  if (body_->lanes > 0) spec_error("this call records one lane: use record with each field by its name");
  body_->seen[0] = View(observation, count);
  const View chosen(&action, 1);
  body_->track->record(body_->seen.data(), &chosen, &reward, 1, source);
  body_->open = true;
}

void Episode::record(Inputs observations, Inputs actions, double reward, const std::string& source) {
  std::vector<View> chosen(body_->chosen.size());
  sort(body_->spec.observations, "obs/", observations.begin(), observations.size(), body_->seen);
  sort(body_->spec.actions, "action/", actions.begin(), actions.size(), chosen);
  const std::vector<double> rewards(std::max<std::size_t>(body_->lanes, 1), reward);
  body_->track->record(body_->seen.data(), chosen.data(), rewards.data(), rewards.size(), source);
  body_->open = true;
}

Decision Episode::decision() const { return {body_->seat->stream, body_->track->decision()}; }
std::size_t Episode::lanes() const { return body_->lanes; }

Episode Session::episode(std::size_t lanes, bool greedy) {
  return Episode(std::make_unique<Episode::Body>(inside_, lanes, greedy));
}

}  // namespace farfield
