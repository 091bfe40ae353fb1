// Counters in, the text that Prometheus reads out.
#include <cstdio>
#include <string>

#include "farfield/client.hpp"
#include "inside.hpp"

namespace farfield {

namespace {

struct Line {
  const char* name;
  bool counter;
  const char* help;
  double value;
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    if (letter == '\\' || letter == '"') out += '\\';
    if (letter == '\n') {
      out += "\\n";
    } else {
      out += letter;
    }
  }
  return out;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

std::string Session::prometheus() const {
  const Counters now = counters();
  const auto count = [](std::uint64_t value) { return static_cast<double>(value); };
  const Line lines[] = {
      {"acted", true, "decisions", count(now.acted)},
      {"fallbacks", true, "decisions made without a policy", count(now.fallbacks)},
      {"episodes", true, "episodes that ended", count(now.episodes)},
      {"fragments", true, "fragments finished", count(now.fragments)},
      {"steps", true, "steps in them", count(now.steps)},
      {"credits", true, "late rewards handed to the gateway", count(now.credits)},
      {"sent", true, "payloads sent, again when sent again", count(now.sent)},
      {"owned", true, "payloads that the gateway owns", count(now.owned)},
      {"refused", true, "payloads that the gateway will never take", count(now.refused)},
      {"adopted", true, "payloads of dead processes, found on disk", count(now.adopted)},
      {"dropped_fragments", true, "fragments for which there was no room", count(now.dropped_fragments)},
      {"dropped_steps", true, "steps for which there was no room", count(now.dropped_steps)},
      {"dropped_credits", true, "late rewards for which there was no room", count(now.dropped_credits)},
      {"damaged_bytes", true, "bytes behind torn frames of the spool", count(now.damaged_bytes)},
      {"waiting", false, "payloads that are not owned yet", count(now.waiting)},
      {"waiting_bytes", false, "bytes that are not owned yet", count(now.waiting_bytes)},
      {"memory_bytes", false, "of them, in memory", count(now.memory_bytes)},
      {"spooled_bytes", false, "of them, on disk", count(now.spooled_bytes)},
      {"ahead", false, "finished fragments that are not settled", count(now.ahead)},
      {"versions", true, "versions that came", count(now.versions)},
      {"version", false, "version that was acted with last; -1: none yet", static_cast<double>(now.version)},
      {"newest", false, "newest version that came; -1: none yet", static_cast<double>(now.newest)},
      {"lag", false, "versions between the two", count(now.lag)},
      {"version_age_seconds", false, "seconds since the newest came", now.version_age},
      {"reconnects", true, "connections after the first", count(now.reconnects)},
      {"rubbish", true, "answers that made no sense", count(now.rubbish)},
      {"connected", false, "1 while the gateway is there", now.connected ? 1.0 : 0.0},
  };
  const std::string labels = "{run=\"" + escaped(inside_->options.run) + "\",client=\"" +
                             escaped(inside_->options.client) + "\",policy=\"" + escaped(inside_->options.policy) +
                             "\"}";
  std::string text;
  for (const Line& line : lines) {
    const std::string name = std::string("farfield_session_") + line.name + (line.counter ? "_total" : "");
    text += "# HELP " + name + " " + line.help + "\n# TYPE " + name + (line.counter ? " counter\n" : " gauge\n");
    text += name + labels + " " + number(line.value) + "\n";
  }
  return text;
}

}  // namespace farfield
