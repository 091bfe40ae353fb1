// The gateway's service in this process: keeps what comes, and drops, repeats, refuses or stops as a test wants.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace farfield::testing {

class FakeGateway {
 public:
  // What it does; may be changed at any time by `change`.
  struct Ways {
    int refuse_code = 0;  // of gRPC: every call ends with it
    std::string refuse_text;
    int versions_code = 0;    // only the call that follows versions does
    int drop_after = 0;       // payloads of a connection after which it breaks, the last one neither owned nor kept
    bool hold = false;        // owns nothing
    bool repeat = false;      // says everything twice
    bool overstate = false;   // owns more than was sent
    bool settle = false;      // settles the fragments that came
    std::function<bool(const std::string&)> unwanted;  // payloads that are refused
    std::uint64_t quota = 8 << 20, limit = 16 << 20, seed = 5;
    std::uint32_t steps = 16;
    std::string announcement;  // that a new follower gets; empty: none yet
    std::int64_t version = -1;
  };

  FakeGateway();
  ~FakeGateway();
  FakeGateway(const FakeGateway&) = delete;
  FakeGateway& operator=(const FakeGateway&) = delete;

  void start();  // at the same port again, after stop
  void stop();
  std::string address() const;

  void change(const std::function<void(Ways&)>& how);
  // Sends to all who follow, and to those who will.
  void publish(std::int64_t version, const std::string& announcement);
  void push(const std::string& announcement);  // only to those who follow

  std::vector<std::string> payloads() const;  // kept, in the order in which they came
  std::set<std::string> distinct() const;
  std::vector<std::string> tokens() const;
  std::vector<std::string> configs() const;
  int calls() const;  // of Append
  std::vector<std::size_t> had() const;  // tensors that each follower said to hold

 private:
  struct Body;
  std::unique_ptr<Body> body_;
};

}  // namespace farfield::testing
