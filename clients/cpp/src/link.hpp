// Calls of the gateway's service as plain data: the only door to gRPC. Nothing here raises because of the network.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace farfield::link {

struct Target {
  std::string address;  // "host:port" or "unix:/path"
  std::string token;
  bool tls = false;
  std::string ca, cert, key;  // PEM, not paths
  std::string name;           // that the gateway's certificate is for; empty: the address
};

struct Hello {
  std::string run, policy, spec, client, config;  // spec and config as JSON
};

struct Welcome {
  std::string run, spec, library;
  std::uint64_t seed = 0, quota = 0, limit = 0;
  std::uint32_t steps = 0, window = 0;
  double credit_window = 0.0;
  std::int64_t version = -1;
  bool created = false;
};

// How a call ended.
struct Outcome {
  int code = 0;  // gRPC's; 0: well
  std::string text;
  bool ok() const { return code == 0; }
  // The gateway will never answer otherwise: trying again makes no sense.
  bool final() const;
  bool cancelled() const { return code == 1; }
};

struct Refusal {
  std::uint64_t index = 0;
  std::string kind, text;
};

struct Received {
  bool welcomed = false;
  Welcome welcome;
  std::uint64_t owned = 0;
  std::vector<Refusal> refusals;
  std::vector<std::pair<std::string, std::uint64_t>> settled;  // stream (hexadecimal), fragments
};

// One connection; calls of different threads share it.
class Channel {
 public:
  explicit Channel(const Target& target);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  Outcome greet(const Hello& hello, double seconds, Welcome& welcome);
  struct Body;
  const std::unique_ptr<Body> body;
};

// The call that carries experience. One thread sends, one receives, any may cancel; finish after both are done.
class Append {
 public:
  explicit Append(Channel& channel);
  ~Append();
  Append(const Append&) = delete;
  Append& operator=(const Append&) = delete;

  // Waits until there is a connection or none can be had; `cancel` ends that.
  bool open(const Hello& hello);
  bool send(std::vector<std::string> payloads);
  bool probe(const std::string& bytes);
  bool receive(Received& received);
  void cancel();
  Outcome finish();

 private:
  struct Body;
  const std::unique_ptr<Body> body_;
};

// The call that follows versions. One thread uses it, any may cancel.
class Versions {
 public:
  explicit Versions(Channel& channel);
  ~Versions();
  Versions(const Versions&) = delete;
  Versions& operator=(const Versions&) = delete;

  void open(const Hello& hello, const std::map<std::string, std::string>& have);
  bool receive(std::string& announcement);
  void cancel();
  Outcome finish();

 private:
  struct Body;
  const std::unique_ptr<Body> body_;
};

}  // namespace farfield::link
