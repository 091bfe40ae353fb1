// An address in; whether a program could connect there, how long each step takes, and what to do where it could not.
//
//   farfield_ping 127.0.0.1:50051 --run lander [--token TOKEN] [--tls-ca FILE] …
//
// Exit codes: 0 all is well, 1 handshake, 2 usage, 3 append, 4 versions.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "farfield/error.hpp"
#include "farfield/wire.hpp"
#include "link.hpp"

namespace {

using farfield::link::Append;
using farfield::link::Channel;
using farfield::link::Hello;
using farfield::link::Outcome;
using farfield::link::Received;
using farfield::link::Target;
using farfield::link::Versions;
using farfield::link::Welcome;
using Clock = std::chrono::steady_clock;

enum Exit : int { kWell = 0, kHandshake = 1, kUsage = 2, kAppend = 3, kVersions = 4 };

constexpr char kUsageText[] =
    "usage: farfield_ping ADDRESS --run RUN [options]\n"
    "  ADDRESS           host:port, or unix:/path\n"
    "  --run RUN         which run to ask for\n"
    "  --policy NAME     which of its policies (main)\n"
    "  --token TOKEN     who we are; FARFIELD_TOKEN says it too\n"
    "  --tls             encrypt, with the system's authorities\n"
    "  --tls-ca FILE     encrypt, and trust only this authority\n"
    "  --tls-cert FILE   who we are, where the gateway asks\n"
    "  --tls-key FILE    the key to it\n"
    "  --count N         appends to time (20)\n"
    "  --timeout SECONDS for each step (10)\n";

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

// Cancels what takes too long.
class Limit {
 public:
  Limit(double seconds, std::function<void()> cancel)
      : thread_([this, seconds, cancel = std::move(cancel)] {
          std::unique_lock hold(mutex_);
          if (done_.wait_for(hold, std::chrono::duration<double>(seconds), [this] { return over_; })) return;
          late_ = true;
          cancel();
        }) {}
  ~Limit() { stop(); }
  // Says whether it was in time.
  bool stop() {
    {
      const std::lock_guard hold(mutex_);
      over_ = true;
    }
    done_.notify_all();
    if (thread_.joinable()) thread_.join();
    return !late_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool over_ = false, late_ = false;
  std::thread thread_;
};

struct Wish {
  Target target;
  Hello hello;
  int count = 20;
  double timeout = 10.0;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || text.empty()) {
    std::fprintf(stderr, "farfield_ping: cannot read %s: give a PEM file\n", path.c_str());
    std::exit(kUsage);
  }
  return text;
}

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "farfield_ping: %s\n%s", what.c_str(), kUsageText);
  std::exit(kUsage);
}

double positive(const std::string& name, const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !(number > 0.0) || number > 1e6) {
    refuse(name + ": expected a number above 0, came '" + value + "'");
  }
  return number;
}

Wish read(int count, char** words) {
  Wish wish;
  wish.hello.policy = "main";
  wish.hello.client = "farfield_ping";
  if (const char* token = std::getenv("FARFIELD_TOKEN")) wish.target.token = token;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--help" || word == "-h") {
      std::fputs(kUsageText, stdout);
      std::exit(kWell);
    }
    if (word == "--tls") {
      wish.target.tls = true;
      continue;
    }
    if (word.rfind("--", 0) != 0) {
      if (!wish.target.address.empty()) refuse("one address is enough: '" + word + "'");
      wish.target.address = word;
      continue;
    }
    if (i + 1 >= count) refuse(word + " needs a value");
    const std::string value = words[++i];
    if (word == "--run") wish.hello.run = value;
    else if (word == "--policy") wish.hello.policy = value;
    else if (word == "--token") wish.target.token = value;
    else if (word == "--tls-ca") wish.target.ca = read_file(value), wish.target.tls = true;
    else if (word == "--tls-cert") wish.target.cert = read_file(value), wish.target.tls = true;
    else if (word == "--tls-key") wish.target.key = read_file(value), wish.target.tls = true;
    else if (word == "--count") wish.count = static_cast<int>(positive(word, value));
    else if (word == "--timeout") wish.timeout = positive(word, value);
    else refuse("unknown option " + word);
  }
  if (wish.target.address.empty()) refuse("no address");
  if (wish.hello.run.empty()) refuse("--run is missing");
  return wish;
}

int fail(const char* step, const Outcome& outcome, bool in_time, const Wish& wish, int code) {
  const char* cure = "";
  switch (outcome.code) {
    case 14: cure = "is the gateway running there, and is it TLS on both sides or on none?"; break;
    case 16: cure = "give --token"; break;
    case 12: cure = "something answers, but it is no Farfield gateway of this version"; break;
    default: break;
  }
  const std::string text = in_time ? outcome.text : "no answer within " + std::to_string(wish.timeout) + " s";
  std::fprintf(stderr, "%-10s failed: %s: %s%s%s\n", step, wish.target.address.c_str(),
               text.empty() ? "the call ended" : text.c_str(), *cure ? "; " : "", cure);
  return code;
}

int handshake(Channel& channel, const Wish& wish, Welcome& welcome) {
  const auto begun = Clock::now();
  const Outcome outcome = channel.greet(wish.hello, wish.timeout, welcome);
  if (!outcome.ok()) return fail("handshake", outcome, outcome.code != 4, wish, kHandshake);
  std::printf("handshake  %8.2f ms  run %s, %s, fragments of %u steps, version %lld\n",
              milliseconds(Clock::now() - begun), welcome.run.c_str(),
              welcome.library.empty() ? "unnamed gateway" : welcome.library.c_str(), welcome.steps,
              static_cast<long long>(welcome.version));
  return kWell;
}

int append(Channel& channel, const Wish& wish) {
  Append call(channel);
  Limit limit(wish.timeout, [&call] { call.cancel(); });
  Received received;
  bool well = call.open(wish.hello);
  while (well && !received.welcomed) well = call.receive(received);
  std::vector<double> times;
  for (int i = 0; i < wish.count && well; ++i) {
    const auto begun = Clock::now();
    well = call.probe("farfield_ping");
    while (well && received.owned <= static_cast<std::uint64_t>(i)) well = call.receive(received);
    if (well) times.push_back(milliseconds(Clock::now() - begun));
  }
  const bool in_time = limit.stop();
  if (!well) return fail("append", call.finish(), in_time, wish, kAppend);
  std::sort(times.begin(), times.end());
  std::printf("append     %8.2f ms  median of %zu durable appends, slowest %.2f ms\n", times[times.size() / 2],
              times.size(), times.back());
  return kWell;
}

int versions(Channel& channel, const Wish& wish, const Welcome& welcome) {
  if (welcome.version < 0) {
    std::printf("versions        none yet  the learner has not published one\n");
    return kWell;
  }
  const auto begun = Clock::now();
  Versions call(channel);
  Limit limit(wish.timeout, [&call] { call.cancel(); });
  call.open(wish.hello, {});
  std::string payload;
  const bool well = call.receive(payload);
  const bool in_time = limit.stop();
  if (!well) return fail("versions", call.finish(), in_time, wish, kVersions);
  const double took = milliseconds(Clock::now() - begun);
  try {
    const farfield::Announcement announcement = farfield::decode_announcement(payload);
    std::printf("versions   %8.2f ms  version %llu, %zu tensors, %zu bytes\n", took,
                static_cast<unsigned long long>(announcement.version.number), announcement.tensors.size(),
                payload.size());
  } catch (const farfield::Error& error) {
    return fail("versions", {15, error.what()}, true, wish, kVersions);
  }
  return kWell;
}

}  // namespace

int main(int count, char** words) {
  const Wish wish = read(count, words);
  Channel channel(wish.target);
  Welcome welcome;
  if (const int code = handshake(channel, wish, welcome)) return code;
  if (const int code = append(channel, wish)) return code;
  return versions(channel, wish, welcome);
}
