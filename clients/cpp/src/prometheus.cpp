// Counters in, the text that Prometheus reads out.
#include <string>

#include "farfield/client.hpp"
#include "inside.hpp"

namespace farfield {

namespace {

struct Line {
  const char* name;
  const char* kind;
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
      {"acted_total", "counter", "decisions", count(now.acted)},
      {"fallbacks_total", "counter", "decisions made without a policy", count(now.fallbacks)},
      {"episodes_total", "counter", "episodes that ended", count(now.episodes)},
      {"fragments_total", "counter", "fragments finished", count(now.fragments)},
      {"steps_total", "counter", "steps in them", count(now.steps)},
      {"credits_total", "counter", "late rewards handed to the gateway", count(now.credits)},
      {"sent_total", "counter", "payloads sent, again when sent again", count(now.sent)},
      {"acked_total", "counter", "payloads that the gateway owns", count(now.acked)},
      {"acked_bytes_total", "counter", "bytes that the gateway owns", count(now.acked_bytes)},
      {"refused_total", "counter", "payloads that the gateway will never take", count(now.refused)},
      {"spooled_total", "counter", "payloads written to disk", count(now.spooled)},
      {"adopted_total", "counter", "payloads of dead processes, found on disk", count(now.adopted)},
      {"dropped_total", "counter", "payloads for which there was no room", count(now.dropped)},
      {"dropped_steps_total", "counter", "steps for which there was no room", count(now.dropped_steps)},
      {"damaged_total", "counter", "spool files that ended in a torn frame", count(now.damaged)},
      {"lost_bytes_total", "counter", "bytes behind torn frames", count(now.lost_bytes)},
      {"settled_total", "counter", "fragments that the learner is done with", count(now.settled)},
      {"versions_total", "counter", "versions that came", count(now.versions)},
      {"connects_total", "counter", "times that the gateway let us in", count(now.connects)},
      {"rubbish_total", "counter", "answers that made no sense", count(now.rubbish)},
      {"waiting", "gauge", "payloads that are not owned yet", count(now.waiting)},
      {"waiting_bytes", "gauge", "bytes that are not owned yet", count(now.waiting_bytes)},
      {"memory_bytes", "gauge", "bytes of experience in memory", count(now.memory)},
      {"version", "gauge", "version that is acted with; -1: none yet", static_cast<double>(now.version)},
      {"version_age_seconds", "gauge", "seconds since it came", now.version_age},
      {"lag", "gauge", "finished fragments that are not settled", count(now.lag)},
      {"connected", "gauge", "1 while the gateway is there", now.connected ? 1.0 : 0.0},
  };
  const std::string labels = "{run=\"" + escaped(inside_->options.run) + "\",policy=\"" +
                             escaped(inside_->options.policy) + "\",client=\"" + escaped(inside_->options.client) +
                             "\"}";
  std::string text;
  for (const Line& line : lines) {
    const std::string name = std::string("farfield_client_") + line.name;
    text += "# HELP " + name + " " + line.help + "\n# TYPE " + name + " " + line.kind + "\n";
    text += name + labels + " " + number(line.value) + "\n";
  }
  return text;
}

}  // namespace farfield
