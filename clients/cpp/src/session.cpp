// Options in, a session out that acts, spools, sends and follows in the background until it is closed.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "fallback.hpp"
#include "farfield/sha256.hpp"
#include "farfield/wire.hpp"
#include "inside.hpp"
#include "random.hpp"

namespace farfield {

namespace {

bool is_name(const std::string& text, std::size_t longest) {
  const auto plain = [](unsigned char letter) {
    return std::isalnum(letter) || letter == '.' || letter == '_' || letter == '-';
  };
  return !text.empty() && text.size() <= longest && std::isalnum(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), plain);
}

void check(const Options& options) {
  if (!is_name(options.run, 100)) {
    config_error("run: expected a name of letters, digits and ._-, at most 100, came '" + options.run + "'");
  }
  if (!is_name(options.policy, 100)) {
    config_error("policy: expected a name of letters, digits and ._-, came '" + options.policy + "'");
  }
  if (options.address.empty()) config_error("address: expected host:port or unix:/path, came nothing");
  if (options.spec.observations.empty() || options.spec.actions.empty()) {
    config_error("spec: expected at least one observation and one action, such as box(\"obs\", {8}) and "
                 "discrete(\"action\", 4)");
  }
  if (!options.config.empty()) Json::parse(options.config, "config");
  if (options.tls.cert.empty() != options.tls.key.empty()) config_error("tls: give both cert and key, or none");
  check(options.spec, options.fallback);
}

Error::Kind kind_of(const link::Outcome& outcome) {
  switch (outcome.code) {
    case 3: return Error::Kind::Spec;     // INVALID_ARGUMENT
    case 5: return Error::Kind::Missing;  // NOT_FOUND
    default: return Error::Kind::Config;  // the token, or the version of the protocol
  }
}

[[noreturn]] void raise(const Inside& inside, const link::Outcome& refusal) {
  throw Error(kind_of(refusal), "the gateway at " + inside.options.address + " refuses: " + refusal.text);
}

}  // namespace

std::string default_spool() {
  const auto from = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string given = from("FARFIELD_SPOOL"); !given.empty()) return given;
  if (const std::string state = from("XDG_STATE_HOME"); !state.empty()) return state + "/farfield/spool";
  if (const std::string home = from("HOME"); !home.empty()) return home + "/.local/state/farfield/spool";
  return "";
}

Decision Decision::parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string stream(text.substr(0, colon));
  unhex(stream, 16, "decision");
  Decision decision{stream, 0};
  const std::string digits(colon == std::string_view::npos ? "" : text.substr(colon + 1));
  if (digits.empty() || digits.size() > 19 || !std::all_of(digits.begin(), digits.end(), ::isdigit)) {
    spec_error("decision: expected STREAM:NUMBER, came '" + std::string(text) + "'");
  }
  decision.n = std::stoull(digits);
  return decision;
}

Field box(std::string name, Shape shape, std::vector<double> low, std::vector<double> high) {
  Field field;
  field.name = std::move(name);
  field.shape = std::move(shape);
  field.low = std::move(low);
  field.high = std::move(high);
  return field;
}

Field discrete(std::string name, std::int64_t count, std::string mask) {
  Field field;
  field.name = std::move(name);
  field.kind = Field::Kind::Discrete;
  field.dtype = Dtype::Int64;
  field.sizes = {count};
  field.mask = std::move(mask);
  return field;
}

Field multi_discrete(std::string name, std::vector<std::int64_t> sizes, std::string mask) {
  Field field = discrete(std::move(name), 0, std::move(mask));
  field.kind = Field::Kind::MultiDiscrete;
  field.shape = {sizes.size()};
  field.sizes = std::move(sizes);
  return field;
}

Field multi_binary(std::string name, Shape shape) {
  Field field = box(std::move(name), std::move(shape));
  field.kind = Field::Kind::MultiBinary;
  field.dtype = Dtype::Int8;
  return field;
}

Field mask(std::string name, std::size_t count) {
  Field field = multi_binary(std::move(name), {count});
  field.dtype = Dtype::Bool;
  return field;
}

std::unique_ptr<Session> connect(Options options) {
  check(options);
  auto inside = std::make_shared<Inside>(std::move(options));
  std::unique_ptr<Session> session(new Session(inside));
  inside->start();
  std::unique_lock hold(inside->mutex);
  inside->event.wait_for(hold, seconds(inside->options.wait),
                         [&] { return inside->welcome.has_value() || inside->refusal || inside->unfollowed; });
  const auto refusal = inside->refusal;
  hold.unlock();
  if (refusal) raise(*inside, *refusal);
  return session;
}

Session::Session(std::shared_ptr<Inside> inside) : inside_(std::move(inside)) {}

// What is on its way gets a moment; what remains waits on disk.
Session::~Session() { close(inside_->tally.connected ? 2.0 : 0.0); }

bool Session::wait(double timeout) {
  std::unique_lock hold(inside_->mutex);
  inside_->event.wait_for(hold, seconds(timeout), [&] {
    return inside_->version >= 0 || inside_->refusal || inside_->unfollowed || inside_->ended();
  });
  const auto refusal = inside_->refusal ? inside_->refusal : inside_->unfollowed;
  if (refusal && inside_->version < 0) raise(*inside_, *refusal);
  return inside_->version >= 0;
}

bool Session::credit(const Decision& decision, double reward, Mode mode, const std::string& id) {
  if (!(std::abs(reward) <= static_cast<double>(std::numeric_limits<float>::max()))) {
    spec_error("credit: expected a finite reward of 32 bits, came " + std::to_string(reward));
  }
  if (!id.empty() && inside_->known(id)) return true;
  for (const auto& seat : inside_->all_seats()) {
    if (seat->stream == decision.stream && seat->track->credit(decision.n, reward, mode == Mode::kSet)) return true;
  }
  farfield::Credit credit;
  credit.run = inside_->options.run;
  credit.stream = decision.stream;
  credit.n = decision.n;
  credit.reward = reward;
  credit.set = mode == Mode::kSet;
  credit.id = id.empty() ? random_digits(32) : id;
  std::string payload = encode(credit);
  if (inside_->forked()) return false;
  add(inside_->tally.credits);
  return inside_->outbox.push(std::move(payload), 0);
}

Remaining Session::flush(double timeout) {
  const Clock::time_point until = Clock::now() + seconds(timeout);
  if (!inside_->forked()) inside_->cut_all();
  Outbox::Left left = inside_->outbox.left();
  while (left.payloads > 0 && !inside_->forked()) {
    std::unique_lock hold(inside_->mutex);
    const std::uint64_t seen = inside_->events;
    hold.unlock();
    left = inside_->outbox.left();
    hold.lock();
    if (left.payloads == 0 || inside_->refusal || inside_->ended()) break;
    if (!inside_->event.wait_until(hold, until, [&] { return inside_->events != seen || inside_->ended(); })) break;
  }
  left = inside_->outbox.left();
  return {left.payloads, left.bytes, left.in_memory};
}

Remaining Session::close(double timeout) {
  if (inside_->forked()) {
    for (std::thread& thread : inside_->threads) thread.detach();  // they are not in this process
    inside_->threads.clear();
    return {};
  }
  const std::lock_guard once(inside_->closing);
  if (inside_->left) return *inside_->left;
  for (const auto& seat : inside_->all_seats()) seat->track->end(true);  // those that are open
  flush(timeout);
  inside_->cut_all();
  inside_->outbox.shut();
  inside_->stop();
  const Outbox::Left left = inside_->outbox.left();
  inside_->outbox.close();
  inside_->left = {left.payloads, left.bytes, left.in_memory};
  return *inside_->left;
}

std::int64_t Session::version() const { return inside_->version; }

std::string Session::trouble() const {
  const std::lock_guard hold(inside_->mutex);
  return inside_->trouble;
}

bool Session::refused() const {
  const std::lock_guard hold(inside_->mutex);
  return inside_->refusal.has_value();
}

Counters Session::counters() const {
  const Tally& tally = inside_->tally;
  Counters all;
  all.acted = tally.acted;
  all.fallbacks = tally.fallbacks;
  all.episodes = tally.episodes;
  all.fragments = tally.fragments;
  all.steps = tally.steps;
  all.credits = tally.credits;
  all.sent = tally.sent;
  all.owned = tally.owned;
  all.refused = tally.refused;
  all.adopted = tally.adopted;
  all.dropped_fragments = tally.dropped_fragments;
  all.dropped_steps = tally.dropped_steps;
  all.dropped_credits = tally.dropped_credits;
  all.damaged_bytes = tally.damaged_bytes;
  all.versions = tally.versions;
  all.reconnects = std::max<std::uint64_t>(tally.connects, 1) - 1;
  all.rubbish = tally.rubbish;
  all.connected = tally.connected;
  const Outbox::Left left = inside_->outbox.left();
  all.waiting = left.payloads;
  all.waiting_bytes = left.bytes;
  all.spooled_bytes = left.spooled;
  all.memory_bytes = inside_->outbox.memory();
  const auto seats = inside_->all_seats();
  for (const auto& seat : seats) all.version = std::max(all.version, seat->track->version());
  all.newest = inside_->version;
  all.lag = all.version >= 0 && all.newest > all.version ? static_cast<std::uint64_t>(all.newest - all.version) : 0;
  for (const auto& seat : seats) {
    if (!seat->lost && seat->finished > seat->settled) all.ahead += seat->finished - seat->settled;
  }
  const std::lock_guard hold(inside_->mutex);
  if (all.newest >= 0) {
    all.version_age = std::chrono::duration<double>(Clock::now() - inside_->version_came).count();
  }
  return all;
}

}  // namespace farfield
