// Words in; a program that acts so many steps against a gateway, and what it counted as JSON, out. Tests in Python
// run it.
//
//   driver --address A --run R --spool FOLDER [--steps N] [--length N] [--wait S] [--version S] [--close S]
//          [--token T] [--config JSON] [--ca FILE] [--cert FILE] [--key FILE] [--policy P] [--die 1] [--pause MS]
//          [--until VERSION]
//
// An observation is 8 numbers, an action one of 4. `--version` waits so long for a first version, `--until` goes on
// until that one decides. `--die` ends the process without closing anything.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "farfield/client.hpp"

namespace {

using Words = std::map<std::string, std::string>;

double number(const Words& words, const std::string& name, double otherwise) {
  const auto found = words.find(name);
  return found == words.end() ? otherwise : std::stod(found->second);
}

std::string text(const Words& words, const std::string& name) {
  const auto found = words.find(name);
  return found == words.end() ? "" : found->second;
}

farfield::Options options_of(const Words& words) {
  farfield::Options options;
  options.address = text(words, "--address");
  options.run = text(words, "--run");
  options.spool = text(words, "--spool");
  options.token = text(words, "--token");
  options.config = text(words, "--config");
  options.tls.ca = text(words, "--ca");
  options.tls.cert = text(words, "--cert");
  options.tls.key = text(words, "--key");
  if (words.count("--policy")) options.policy = text(words, "--policy");
  options.wait = number(words, "--wait", 30.0);
  options.spec.observations = {farfield::box("obs", {8})};
  options.spec.actions = {farfield::discrete("action", 4)};
  return options;
}

void play(farfield::Session& app, const Words& words) {
  const auto steps = static_cast<long>(number(words, "--steps", 1000));
  const auto length = static_cast<long>(number(words, "--length", 50));
  const auto pause = std::chrono::duration<double, std::milli>(number(words, "--pause", 0.0));
  auto episode = app.episode();
  const auto until = static_cast<std::int64_t>(number(words, "--until", -1));
  for (long step = 0; step < steps || app.counters().version < until; ++step) {
    float seen[8] = {};
    seen[step % 8] = 1.0F;
    const int action = episode.act(seen, 8);
    episode.reward(action == step % 4 ? 1.0 : 0.0);
    if (step % length == length - 1) episode.end();
    if (pause.count() > 0.0) std::this_thread::sleep_for(pause);
  }
}

void tell(const farfield::Counters& now, const farfield::Remaining& left) {
  const auto print = [](const char* name, auto value) {
    std::printf("\"%s\": %lld, ", name, static_cast<long long>(value));
  };
  std::printf("{");
  print("acted", now.acted);
  print("fallbacks", now.fallbacks);
  print("steps", now.steps);
  print("fragments", now.fragments);
  print("owned", now.owned);
  print("refused", now.refused);
  print("adopted", now.adopted);
  print("dropped_fragments", now.dropped_fragments);
  print("versions", now.versions);
  print("version", now.version);
  print("reconnects", now.reconnects);
  print("remaining", left.payloads);
  std::printf("\"in_memory\": %lld}\n", static_cast<long long>(left.in_memory));
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** given) {
  Words words;
  for (int i = 1; i + 1 < count; i += 2) words[given[i]] = given[i + 1];
  try {
    auto app = farfield::connect(options_of(words));
    const double patience = number(words, "--version", 0.0);
    if (patience > 0.0 && !app->wait(patience)) throw std::runtime_error("no version: " + app->trouble());
    play(*app, words);
    if (number(words, "--die", 0.0) != 0.0) {
      app->flush(0.2);  // the last rows are on disk then
      tell(app->counters(), {});
      std::raise(SIGKILL);
    }
    const farfield::Remaining left = app->close(number(words, "--close", 30.0));
    tell(app->counters(), left);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "driver: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
