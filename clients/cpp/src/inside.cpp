#include "inside.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "random.hpp"

namespace farfield {

namespace {

std::string folder(const Options& options) {
  const std::string root = options.spool ? *options.spool : default_spool();
  if (root.empty()) return "";
  return root + "/" + options.run + (options.policy == "main" ? "" : "." + options.policy);
}

std::string label() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) name[0] = '\0';
  return std::string(name) + ":" + std::to_string(getpid());
}

std::string read_file(const std::string& path, const char* what) {
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || text.empty()) config_error(std::string("tls: ") + what + ": cannot read " + path + ": give a PEM file");
  return text;
}

Options named(Options options) {
  if (options.client.empty()) options.client = label();
  return options;
}

// Rows of a fragment: as the run likes them, but no more than fit into one payload.
std::size_t rows(const Facts& facts, const Spec& spec, std::size_t lanes) {
  constexpr std::size_t kAround = std::size_t{64} << 10;  // bytes besides the rows, at most
  std::size_t row = 16;
  for (const auto* fields : {&spec.observations, &spec.actions}) {
    for (const Field& field : *fields) row += field.bytes();
  }
  row *= std::max<std::size_t>(lanes, 1);
  const std::size_t fitting = facts.limit > kAround ? (facts.limit - kAround) / row : 0;
  return std::max<std::size_t>(1, std::min(facts.steps, fitting > 0 ? fitting - 1 : 0));
}

// Our threads take no signals: handlers of the program run where the program expects them, and a write beyond a limit
// is an error rather than the end of the process.
std::thread quiet(void (*loop)(Inside&), Inside& inside) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread made(loop, std::ref(inside));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return made;
}

}  // namespace

Inside::Inside(Options given)
    : options(named(std::move(given))),
      spec_json(options.spec.write()),
      spec_hash(options.spec.hash()),
      process(getpid()),
      outbox(folder(options), options.quota, options.memory, tally) {
  hello = {options.run, options.policy, spec_json, options.client, options.config};
  const Tls& tls = options.tls;
  target = {options.address,
            options.token,
            tls.on || !tls.ca.empty() || !tls.cert.empty(),
            read_file(tls.ca, "ca"),
            read_file(tls.cert, "cert"),
            read_file(tls.key, "key"),
            tls.name};
  outbox.changed = [this] { wake(); };
  outbox.lost = [this](const std::string& stream) { note_lost(stream); };
}

Facts Inside::current_facts() const {
  const std::lock_guard hold(mutex);
  return facts;
}

std::shared_ptr<Seat> Inside::sit(std::size_t lanes) {
  const Facts now = current_facts();
  const std::lock_guard hold(seats_mutex);
  for (const auto& seat : seats) {
    if (!seat->taken && seat->lanes == lanes && seat->facts == now && !seat->lost) {
      seat->taken = true;
      return seat;
    }
  }
  auto seat = std::make_shared<Seat>();
  seat->stream = random_digits(32);
  seat->lanes = lanes;
  seat->facts = now;
  seat->taken = true;
  Track::Options track;
  track.run = options.run;
  track.policy = options.policy;
  track.actor = options.client;
  track.stream = seat->stream;
  track.seed = now.seed;
  track.steps = rows(now, options.spec, lanes);
  track.lanes = lanes;
  seat->track = std::make_unique<Track>(
      slot, options.spec, track, [this, place = seat.get()](std::string payload, std::uint64_t rows) {
        add(place->finished);
        made(std::move(payload), rows);
      });
  seats.push_back(seat);
  return seat;
}

// A lost fragment leaves a gap, which a learner does not go beyond: the next episode begins a new stream.
void Inside::note_lost(const std::string& stream) {
  const std::lock_guard hold(seats_mutex);
  for (const auto& seat : seats) {
    if (seat->stream == stream) seat->lost = true;
  }
}

bool Inside::known(const std::string& id) {
  constexpr std::size_t kMost = 4096;
  const std::lock_guard hold(credits_mutex);
  if (std::find(credits.begin(), credits.end(), id) != credits.end()) return true;
  credits.push_back(id);
  if (credits.size() > kMost) credits.pop_front();
  return false;
}

void Inside::yield_turn(const Seat& seat) {
  const auto ready = [this, &seat] {
    const std::uint64_t window = welcome ? welcome->window : 2;
    return seat.finished <= seat.settled + window || seat.lost || refusal || ended();
  };
  std::unique_lock hold(mutex);
  event.wait(hold, ready);
}

void Inside::leave(const std::shared_ptr<Seat>& seat) {
  const bool old = outdated(*seat);
  if (old) seat->track->cut();
  const std::lock_guard hold(seats_mutex);
  seat->taken = false;
  if (old) seats.erase(std::remove(seats.begin(), seats.end(), seat), seats.end());
}

std::vector<std::shared_ptr<Seat>> Inside::all_seats() {
  const std::lock_guard hold(seats_mutex);
  return seats;
}

void Inside::made(std::string payload, std::uint64_t steps) {
  if (forked()) return;
  add(tally.fragments);
  add(tally.steps, steps);
  outbox.push(std::move(payload), steps);
}

void Inside::wake() {
  {
    const std::lock_guard hold(mutex);
    ++events;
  }
  event.notify_all();
}

// In a child of the process that connected: our threads are not there, and what it counts is not ours to send.
bool Inside::forked() const { return getpid() != process; }

void Inside::note_trouble(const std::string& text) {
  const std::lock_guard hold(mutex);
  trouble = text;
}

void Inside::cut_all() {
  for (const auto& seat : all_seats()) seat->track->cut();
}

void Inside::start() {
  for (auto* loop : {&keep, &send, &follow}) threads.push_back(quiet(loop, *this));
}

void Inside::stop() {
  stopping.store(true);
  {
    const std::lock_guard hold(calls_mutex);
    if (append_call) append_call->cancel();
    if (versions_call) versions_call->cancel();
  }
  wake();
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

void Pauses::wait(Inside& inside) {
  std::unique_lock hold(inside.mutex);
  inside.event.wait_for(hold, seconds(next_), [&inside] { return inside.ended(); });
  next_ = std::min(1.0, 2.0 * next_);
}

namespace {

// A connection may die without a word, and whoever writes to it stands still: this ends it.
void watch(Inside& inside) {
  const Clock::time_point now = Clock::now();
  if (inside.tally.connected && inside.outbox.on_the_way() == 0) inside.heard = now;
  if (now - inside.heard.load() < seconds(inside.options.patience)) return;
  const std::lock_guard hold(inside.calls_mutex);
  if (!inside.append_call) return;
  inside.heard = now;
  inside.append_call->cancel();
  inside.note_trouble("the gateway at " + inside.options.address + " does not answer: connecting anew");
}

}  // namespace

// Writes to disk what came, cuts what waited for long, and looks after the connection.
void keep(Inside& inside) {
  const double flush = inside.options.flush;
  const double tick = flush > 0.0 ? std::clamp(flush / 4.0, 0.005, 0.25) : 1.0;
  Clock::time_point looked = Clock::now();
  std::uint64_t seen = 0;
  while (!inside.ended()) {
    {
      std::unique_lock hold(inside.mutex);
      inside.event.wait_for(hold, seconds(tick), [&] { return inside.events != seen || inside.ended(); });
      seen = inside.events;
    }
    if (inside.outbox.store()) inside.wake();
    const Clock::time_point now = Clock::now();
    if (now - looked < seconds(tick)) continue;
    looked = now;
    watch(inside);
    if (flush <= 0.0 || inside.options.pace) continue;
    const double limit = std::chrono::duration<double>(now.time_since_epoch()).count() - flush;
    for (const auto& seat : inside.all_seats()) {
      const double oldest = seat->track->oldest();
      if (oldest > 0.0 && oldest <= limit) seat->track->cut();
    }
  }
  inside.outbox.store();
}

}  // namespace farfield
