// Calls of C in, calls of the C++ session out; exceptions become codes here.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "farfield/client.hpp"
#include "farfield/farfield.h"

struct ff_options {
  farfield::Options options;
};
struct ff_session {
  std::unique_ptr<farfield::Session> session;
};
struct ff_episode {
  farfield::Episode episode;
};

namespace {

// A text of fixed size, so that saying what went wrong cannot go wrong itself.
thread_local char last_error[1024] = "";

int fail(int code, const char* text) noexcept {
  std::strncpy(last_error, text, sizeof last_error - 1);
  return code;
}

int code_of(const farfield::Error& error) noexcept {
  switch (error.kind) {
    case farfield::Error::Kind::Spec: return FF_SPEC;
    case farfield::Error::Kind::Missing: return FF_MISSING;
    case farfield::Error::Kind::Corrupt: return FF_CORRUPT;
    case farfield::Error::Kind::Config: return FF_CONFIG;
    case farfield::Error::Kind::Full: return FF_FULL;
    case farfield::Error::Kind::Conflict: return FF_CONFLICT;
  }
  return FF_INTERNAL;
}

template <class Call>
int guarded(bool given, Call&& call) noexcept {
  if (!given) return fail(FF_ARGUMENT, "a handle or a pointer is null");
  try {
    call();
    return FF_OK;
  } catch (const farfield::Error& error) {
    return fail(code_of(error), error.what());
  } catch (const std::exception& error) {
    return fail(FF_INTERNAL, error.what());
  } catch (...) {
    return fail(FF_INTERNAL, "an unknown exception");
  }
}

double number(const std::string& name, const std::string& value) {
  char* end = nullptr;
  const double found = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !(found >= 0.0)) {
    farfield::config_error(name + ": expected a number from 0 on, came '" + value + "'");
  }
  return found;
}

std::vector<double> numbers(const std::string& text) {
  std::vector<double> found;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    char* end = nullptr;
    found.push_back(std::strtod(part.c_str(), &end));
    if (part.empty() || *end != '\0') farfield::config_error("fallback: expected numbers, came '" + text + "'");
    at = comma + 1;
  }
  return found;
}

void set(farfield::Options& options, const std::string& name, const std::string& value) {
  const std::pair<const char*, std::string*> texts[] = {
      {"address", &options.address}, {"run", &options.run},       {"token", &options.token},
      {"policy", &options.policy},   {"config", &options.config}, {"client", &options.client},
      {"ca", &options.tls.ca},       {"cert", &options.tls.cert}, {"key", &options.tls.key},
      {"tls_name", &options.tls.name}};
  for (const auto& [known, place] : texts) {
    if (name == known) {
      *place = value;
      return;
    }
  }
  const std::pair<const char*, double*> seconds[] = {
      {"flush", &options.flush}, {"wait", &options.wait}, {"patience", &options.patience}};
  for (const auto& [known, place] : seconds) {
    if (name == known) {
      *place = number(name, value);
      return;
    }
  }
  if (name == "spec") options.spec = farfield::Spec::parse(value);
  else if (name == "spool") options.spool = value;
  else if (name == "quota") options.quota = static_cast<std::uint64_t>(number(name, value));
  else if (name == "memory") options.memory = static_cast<std::size_t>(number(name, value));
  else if (name == "tls") options.tls.on = number(name, value) != 0.0;
  else if (name == "pace") options.pace = number(name, value) != 0.0;
  else if (name == "fallback") options.fallback.action = numbers(value);
  else farfield::config_error("'" + name + "' is no option; farfield.h lists them at ff_set");
}

std::vector<farfield::Named> columns(const ff_column* given, std::size_t count) {
  std::vector<farfield::Named> made;
  for (std::size_t i = 0; i < count; ++i) {
    if (!given[i].name || !given[i].data) {
      farfield::spec_error("column " + std::to_string(i) + ": name or data is null");
    }
    if (given[i].dtype < FF_BOOL || given[i].dtype > FF_FLOAT64) {
      farfield::spec_error("column '" + std::string(given[i].name) + "': dtype " + std::to_string(given[i].dtype) +
                           " is unknown; farfield.h lists them");
    }
    const auto dtype = static_cast<farfield::Dtype>(given[i].dtype);
    made.push_back({given[i].name, farfield::View(given[i].data, dtype, given[i].count)});
  }
  return made;
}

// C has bytes for truth values; anything but 0 and 1 among them is a mistake.
const bool* truths(const uint8_t* bytes, std::size_t count, const char* what) {
  if (bytes && std::any_of(bytes, bytes + count, [](uint8_t byte) { return byte > 1; })) {
    farfield::spec_error(std::string(what) + ": expected bytes 0 and 1");
  }
  return reinterpret_cast<const bool*>(bytes);
}

void put(const farfield::Remaining& from, ff_remaining* to) {
  if (to) *to = {from.payloads, from.bytes, from.in_memory};
}

}  // namespace

extern "C" {

const char* ff_last_error(void) { return last_error; }
const char* ff_library_version(void) { return FARFIELD_VERSION; }

ff_options* ff_options_new(void) { return new (std::nothrow) ff_options(); }
void ff_options_free(ff_options* options) { delete options; }

int ff_set(ff_options* options, const char* name, const char* value) {
  return guarded(options && name && value, [&] { set(options->options, name, value); });
}

int ff_connect(const ff_options* options, ff_session** session) {
  return guarded(options && session, [&] {
    *session = nullptr;
    auto made = std::make_unique<ff_session>();
    made->session = farfield::connect(options->options);
    *session = made.release();
  });
}

int ff_wait(ff_session* session, double seconds) {
  return guarded(session, [&] {
    if (!session->session->wait(seconds)) farfield::missing_error("no version came in time: is the learner running?");
  });
}

int ff_flush(ff_session* session, double seconds, ff_remaining* remaining) {
  return guarded(session, [&] { put(session->session->flush(seconds), remaining); });
}

int ff_close(ff_session* session, double seconds, ff_remaining* remaining) {
  return guarded(session, [&] { put(session->session->close(seconds), remaining); });
}

void ff_session_free(ff_session* session) {
  guarded(session, [&] { delete session; });
}

int ff_counters_get(const ff_session* session, ff_counters* counters) {
  return guarded(session && counters, [&] {
    const farfield::Counters now = session->session->counters();
    *counters = {now.acted,           now.fallbacks,     now.episodes,        now.fragments,     now.steps,
                 now.credits,         now.sent,          now.owned,           now.refused,       now.adopted,
                 now.dropped_fragments, now.dropped_steps, now.dropped_credits, now.damaged_bytes, now.waiting,
                 now.waiting_bytes,   now.memory_bytes,  now.spooled_bytes,   now.ahead,         now.versions,
                 now.version,         now.newest,        now.lag,             now.version_age,   now.reconnects,
                 now.rubbish,         now.connected ? 1 : 0};
  });
}

int64_t ff_version(const ff_session* session) { return session ? session->session->version() : -1; }

size_t ff_prometheus(const ff_session* session, char* text, size_t size) {
  size_t needed = 0;
  guarded(session, [&] {
    const std::string made = session->session->prometheus();
    needed = made.size() + 1;
    if (!text || size == 0) return;
    const size_t some = std::min(made.size(), size - 1);
    std::memcpy(text, made.data(), some);
    text[some] = '\0';
  });
  return needed;
}

int ff_episode_begin(ff_session* session, size_t lanes, int greedy, ff_episode** episode) {
  return guarded(session && episode, [&] {
    *episode = nullptr;
    *episode = new ff_episode{session->session->episode(lanes, greedy != 0)};
  });
}

void ff_episode_free(ff_episode* episode) {
  guarded(episode, [&] { delete episode; });
}

int ff_act(ff_episode* episode, const float* observation, size_t count, const uint8_t* mask, size_t choices,
           int64_t* action) {
  return guarded(episode && observation && action, [&] {
    *action = mask ? episode->episode.act(observation, count, truths(mask, choices, "mask"), choices)
                   : episode->episode.act(observation, count);
  });
}

int ff_decide(ff_episode* episode, const ff_column* observations, size_t count) {
  return guarded(episode && observations, [&] {
    const auto given = columns(observations, count);
    episode->episode.decide(given.data(), given.size());
  });
}

int ff_action(const ff_episode* episode, size_t field, const void** data) {
  return guarded(episode && data, [&] { *data = episode->episode.action(field); });
}

int ff_reward(ff_episode* episode, double amount) {
  return guarded(episode, [&] { episode->episode.reward(amount); });
}

int ff_rewards(ff_episode* episode, const double* amounts, size_t lanes) {
  return guarded(episode && amounts, [&] { episode->episode.reward(amounts, lanes); });
}

int ff_end(ff_episode* episode, int truncated, const float* last, size_t count) {
  return guarded(episode, [&] {
    if (last) {
      episode->episode.end(truncated != 0, last, count);
    } else {
      episode->episode.end(truncated != 0);
    }
  });
}

int ff_end_with(ff_episode* episode, int truncated, const ff_column* last, size_t count) {
  return guarded(episode && last, [&] {
    const auto given = columns(last, count);
    episode->episode.end(truncated != 0, given.data(), given.size());
  });
}

int ff_restart(ff_episode* episode, const uint8_t* ended, const uint8_t* truncated, size_t lanes) {
  return guarded(episode && ended, [&] {
    if (lanes != episode->episode.lanes()) {
      farfield::spec_error("restart: expected " + std::to_string(episode->episode.lanes()) + " lanes, came " +
                           std::to_string(lanes));
    }
    episode->episode.restart(truths(ended, lanes, "ended"), truths(truncated, lanes, "truncated"));
  });
}

int ff_record(ff_episode* episode, const float* observation, size_t count, int64_t action, double reward,
              const char* source) {
  return guarded(episode && observation && source,
                 [&] { episode->episode.record(observation, count, action, reward, source); });
}

int ff_decision(const ff_episode* episode, char stream[33], uint64_t* n) {
  return guarded(episode && stream && n, [&] {
    const farfield::Decision decision = episode->episode.decision();
    std::memcpy(stream, decision.stream.c_str(), 33);
    *n = decision.n;
  });
}

int ff_credit(ff_session* session, const char* stream, uint64_t n, double reward, int set, const char* id) {
  return guarded(session && stream, [&] {
    const farfield::Mode mode = set ? farfield::Mode::kSet : farfield::Mode::kAdd;
    if (!session->session->credit({stream, n}, reward, mode, id ? id : "")) {
      throw farfield::Error(farfield::Error::Kind::Full, "credit: no room for it; farfield.h: quota and memory");
    }
  });
}

}  // extern "C"
