// What waits in the outbox in; payloads owned by the gateway out, endlessly, whatever happens to the connection.
#include <algorithm>
#include <utility>

#include "farfield/wire.hpp"
#include "inside.hpp"

namespace farfield {

namespace {

constexpr std::uint64_t kBatch = std::uint64_t{1} << 20;  // bytes of one message, about

// One connection: what its two threads tell one another.
struct Line {
  std::atomic<bool> open{true};
  std::atomic<bool> welcomed{false};
  std::atomic<std::uint64_t> quota{0}, limit{0};
};

void let_in(Inside& inside, Line& line, const link::Welcome& welcome) {
  line.quota = welcome.quota;
  line.limit = welcome.limit > 0 ? welcome.limit : kBatch;
  inside.outbox.adopt();
  {
    const std::lock_guard hold(inside.mutex);
    inside.welcome = welcome;
    inside.facts.seed = welcome.seed;
    if (welcome.steps > 0) inside.facts.steps = std::min<std::size_t>(welcome.steps, 1U << 20);
    inside.facts.limit = std::min<std::uint64_t>(line.limit, LIMIT);
    inside.trouble.clear();
  }
  inside.tally.connected = true;
  add(inside.tally.connects);
  line.welcomed = true;
}

void settle(Inside& inside, const link::Received& received) {
  if (received.settled.empty()) return;
  for (const auto& seat : inside.all_seats()) {
    for (const auto& [stream, fragments] : received.settled) {
      if (stream == seat->stream && fragments > seat->settled) seat->settled = fragments;
    }
  }
  inside.wake();
}

// What comes down: the welcome, then what became of what was sent.
void receive(Inside& inside, link::Append& call, Line& line) {
  link::Received received;
  while (call.receive(received)) {
    inside.heard = Clock::now();
    if (received.welcomed && !line.welcomed) let_in(inside, line, received.welcome);
    for (const link::Refusal& refusal : received.refusals) {
      inside.outbox.refuse(refusal.index);
      inside.note_trouble(refusal.kind + ": " + refusal.text);
    }
    settle(inside, received);
    inside.outbox.own(received.owned);
  }
  line.open = false;
  inside.wake();
}

// Sends until the line breaks. Waits for events without missing one that came while it looked.
void pump(Inside& inside, link::Append& call, Line& line) {
  std::vector<std::string> batch;
  while (line.open && !inside.ended()) {
    std::uint64_t seen = 0;
    {
      const std::lock_guard hold(inside.mutex);
      seen = inside.events;
    }
    batch.clear();
    if (line.welcomed && inside.outbox.take(batch, kBatch, line.quota, line.limit)) {
      if (!call.send(std::move(batch))) return;
      continue;
    }
    std::unique_lock hold(inside.mutex);
    inside.event.wait_for(hold, seconds(1.0), [&] { return inside.events != seen || !line.open || inside.ended(); });
  }
}

// One connection from its beginning to its end.
link::Outcome attempt(Inside& inside, bool& welcomed) {
  auto channel = std::make_shared<link::Channel>(inside.target);
  link::Append call(*channel);
  {
    const std::lock_guard hold(inside.calls_mutex);
    if (inside.ended()) return {};
    inside.append_call = &call;
    inside.channel = channel;
  }
  Line line;
  inside.heard = Clock::now();
  call.open(inside.hello);
  std::thread receiver([&] { receive(inside, call, line); });
  pump(inside, call, line);
  if (line.open) call.cancel();  // otherwise it has ended, and says why
  receiver.join();
  welcomed = line.welcomed;
  inside.tally.connected = false;
  {
    const std::lock_guard hold(inside.calls_mutex);
    inside.append_call = nullptr;
    inside.channel.reset();
    if (inside.versions_call) inside.versions_call->cancel();  // on the same connection, which may be dead
  }
  inside.outbox.rewind();
  return call.finish();
}

}  // namespace

void send(Inside& inside) {
  Pauses pauses;
  while (!inside.ended()) {
    bool welcomed = false;
    const link::Outcome outcome = attempt(inside, welcomed);
    if (inside.ended()) return;
    if (outcome.final()) {
      {
        const std::lock_guard hold(inside.mutex);
        inside.refusal = outcome;
        inside.trouble = outcome.text;
      }
      inside.wake();
      return;
    }
    if (welcomed) pauses.reset();
    if (!outcome.ok() && !outcome.cancelled()) inside.note_trouble(outcome.text);
    pauses.wait(inside);
  }
}

}  // namespace farfield
