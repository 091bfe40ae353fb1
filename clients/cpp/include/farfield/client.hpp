// A program that runs: it asks for actions and tells rewards, and gets better while it runs.
//
//   farfield::Options options;
//   options.address = "127.0.0.1:50051";
//   options.run = "lander";
//   options.spec.observations = {farfield::box("obs", {8})};
//   options.spec.actions = {farfield::discrete("action", 4)};
//   auto app = farfield::connect(options);
//   auto episode = app->episode();
//   int action = episode.act(obs, 8);
//   episode.reward(1.0);
//   episode.end();
//
// Nothing in act, reward and end waits for a network or a disk, or raises because of one. A farfield::Error there says
// that the program handed over something else than its spec declares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farfield/columns.hpp"
#include "farfield/error.hpp"
#include "farfield/spec.hpp"

namespace farfield {

// Fields of a spec, in short. Bounds: none, one for all elements, or one for each.
Field box(std::string name, Shape shape, std::vector<double> low = {}, std::vector<double> high = {});
Field discrete(std::string name, std::int64_t count, std::string mask = "");
Field multi_discrete(std::string name, std::vector<std::int64_t> sizes, std::string mask = "");
Field multi_binary(std::string name, Shape shape);
Field mask(std::string name, std::size_t count);  // one truth value for each choice; the name begins with "mask"

// What to do before the first version is there. Such decisions are marked with the source "fallback".
struct Fallback {
  // Empty: a random action that is allowed. Otherwise this one, all action fields in their order; where it is not
  // allowed, a random one that is.
  std::vector<double> action;
};

// Files in PEM form. `ca` empty and `on`: the system's authorities. `cert` and `key`: who we are, where that is asked.
// `name`: whom the gateway's certificate is for, where that is not the address.
struct Tls {
  bool on = false;
  std::string ca, cert, key, name;
};

struct Options {
  std::string address = "127.0.0.1:50051";  // host:port, or unix:/path
  std::string run;
  Spec spec;
  std::string token;
  std::string policy = "main";
  std::string config;                // JSON: what to create the run with if there is none; empty: never create
  std::string client;                // a label for people; empty: host name and process
  std::optional<std::string> spool;  // folder; "": none; nothing: the user's own, see default_spool()
  std::uint64_t quota = std::uint64_t{256} << 20;  // bytes of the run's spool
  std::size_t memory = std::size_t{32} << 20;      // bytes of experience that wait in memory
  double flush = 1.0;                              // seconds after which rows are sent in a shorter fragment; 0: never
  double wait = 10.0;                              // seconds that connect waits to be let in, at most
  double patience = 30.0;                          // seconds without an answer after which it connects anew
  Tls tls;
  Fallback fallback;
  // For programs that may wait, such as simulators: act stands still while the learner is a window of fragments behind.
  // Fragments are then never cut short by `flush`, so that a window always holds what the learner needs.
  bool pace = false;
};

// FARFIELD_SPOOL, or the user's folder for state: what Python sessions use too.
std::string default_spool();

// Names one decision for ever, so that its reward can come later and from anywhere.
struct Decision {
  std::string stream;
  std::uint64_t n = 0;

  std::string text() const { return stream + ":" + std::to_string(n); }
  static Decision parse(std::string_view text);
};

enum class Mode { kAdd, kSet };

// What is not owned by the gateway yet.
struct Remaining {
  std::uint64_t payloads = 0;   // fragments and credits
  std::uint64_t bytes = 0;
  std::uint64_t in_memory = 0;  // of the payloads: lost when the process ends. The others wait on disk
  bool none() const noexcept { return payloads == 0; }
};

// The names are those of Python sessions.
struct Counters {
  std::uint64_t acted = 0;              // decisions, of all lanes
  std::uint64_t fallbacks = 0;          // of them, made without a policy
  std::uint64_t episodes = 0;           // that ended
  std::uint64_t fragments = 0;          // finished
  std::uint64_t steps = 0;              // in them
  std::uint64_t credits = 0;            // late rewards handed to the gateway
  std::uint64_t sent = 0;               // payloads (fragments and credits), counted again when sent again
  std::uint64_t owned = 0;              // payloads that the gateway owns
  std::uint64_t refused = 0;            // payloads that it will never take
  std::uint64_t adopted = 0;            // payloads of dead processes, found on disk
  std::uint64_t dropped_fragments = 0;  // for which there was no room
  std::uint64_t dropped_steps = 0;      // in them
  std::uint64_t dropped_credits = 0;
  std::uint64_t damaged_bytes = 0;      // behind torn frames of the spool
  std::uint64_t waiting = 0;            // payloads not owned yet
  std::uint64_t waiting_bytes = 0;
  std::uint64_t memory_bytes = 0;       // of them, in memory
  std::uint64_t spooled_bytes = 0;      // of them, on disk
  std::uint64_t ahead = 0;              // finished fragments that are not settled
  std::uint64_t versions = 0;           // that came
  std::int64_t version = -1;            // that was acted with last; -1: none yet
  std::int64_t newest = -1;             // that came
  std::uint64_t lag = 0;                // between the two
  double version_age = 0.0;             // seconds since the newest came
  std::uint64_t reconnects = 0;
  std::uint64_t rubbish = 0;            // answers that made no sense
  bool connected = false;
};

// A named array: a whole column name, or the part behind "obs/" or "action/".
struct Named {
  std::string_view name;
  View value;
};
using Inputs = std::initializer_list<Named>;

struct Inside;
struct Seat;

// One run of the program. Made by Session::episode; one thread at a time. It ends as terminated when it goes out of
// scope, as truncated when an exception takes it there. After `end`, the next `act` begins the next episode.
class Episode {
 public:
  Episode(Episode&& other) noexcept;
  Episode& operator=(Episode&& other) noexcept;
  ~Episode();

  // One observation field of float32 and one discrete action, one lane.
  int act(const float* observation, std::size_t count);
  int act(const float* observation, std::size_t count, const bool* mask, std::size_t choices);
  int act(const std::vector<float>& observation) { return act(observation.data(), observation.size()); }

  // Any spec: the actions stand in `action<T>()` until the next act. Batched episodes give [lanes, …] everywhere.
  void decide(Inputs observations);
  void decide(const Named* observations, std::size_t count);
  // One observation field (and one mask), one action field, any number of lanes.
  void act(View observation, void* action, std::size_t bytes);
  void act(View observation, View mask, void* action, std::size_t bytes);

  // What was decided last, field by field in the order of the spec.
  const void* action(std::size_t field = 0) const;
  template <class T>
  const T* action(std::size_t field = 0) const {
    check_action(field, dtype_for<T>());
    return static_cast<const T*>(action(field));
  }

  // Adds to the reward of the last decision; any number of times until the next one.
  void reward(double amount);
  void reward(const double* amounts, std::size_t lanes);

  // Ends the episode. Truncated: it was only cut off, and `last` is what would have been seen next.
  void end(bool truncated = false);
  void end(bool truncated, const float* last, std::size_t count);
  void end(bool truncated, const std::vector<float>& last) { end(truncated, last.data(), last.size()); }
  void end(bool truncated, Inputs last);
  void end(bool truncated, const Named* last, std::size_t count);
  // Ends the episodes of some lanes; the others go on.
  void restart(const bool* ended, const bool* truncated = nullptr, Inputs last = {});

  // A decision that somebody else made: "person", "heuristic", "host", …
  void record(const float* observation, std::size_t count, std::int64_t action, double reward,
              const std::string& source = "host");
  void record(Inputs observations, Inputs actions, double reward, const std::string& source = "host");

  // Which decision was the last one, so that its reward may come later.
  Decision decision() const;
  std::size_t lanes() const;

 private:
  friend class Session;
  struct Body;
  explicit Episode(std::unique_ptr<Body> body);
  void check_action(std::size_t field, Dtype wanted) const;

  std::unique_ptr<Body> body_;
};

// A live program's connection. Any thread may call anything.
class Session {
 public:
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // `lanes` 0: one, without an axis for it. `greedy`: the best action rather than an exploring one.
  Episode episode(std::size_t lanes = 0, bool greedy = false);

  // A reward for an earlier decision, of this process or another. The same id again is the same credit. False: there
  // was no room for it, which is counted.
  bool credit(const Decision& decision, double reward, Mode mode = Mode::kAdd, const std::string& id = "");

  // Waits for the first version; false when it did not come in time. Raises what the gateway refuses for good.
  bool wait(double seconds);
  // Sends what there is, and waits until the gateway owns it; says what does not.
  Remaining flush(double seconds);
  // Ends all episodes as cut off, delivers as `flush` does, and is over. What remains waits on disk for the next
  // process. Later episodes act, and are not recorded.
  Remaining close(double seconds);

  std::int64_t version() const;  // the newest; -1: none yet
  Counters counters() const;
  // The counters in the text format that Prometheus reads.
  std::string prometheus() const;
  // What went wrong last; empty: nothing.
  std::string trouble() const;
  // Whether the gateway refused this program for good: it acts and spools, and asks no more.
  bool refused() const;

 private:
  friend std::unique_ptr<Session> connect(Options options);
  explicit Session(std::shared_ptr<Inside> inside);

  std::shared_ptr<Inside> inside_;
};

// Connects in the background. Raises farfield::Error for options that cannot be, and for what the gateway refuses for
// good while it waits; never because nobody is there.
std::unique_ptr<Session> connect(Options options);

}  // namespace farfield
