#include "fake_gateway.hpp"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "farfield/v1/farfield.grpc.pb.h"

namespace farfield::testing {

namespace {

std::string token_of(const grpc::ServerContext& context) {
  const auto found = context.client_metadata().find("authorization");
  return found == context.client_metadata().end() ? "" : std::string(found->second.data(), found->second.size());
}

}  // namespace

struct FakeGateway::Body final : v1::Gateway::Service {
  mutable std::mutex mutex;
  std::condition_variable changed;
  Ways ways;
  std::vector<std::string> payloads, tokens, configs;
  std::vector<std::size_t> had;
  std::vector<std::string> pushed;
  int calls = 0;
  bool stopping = false;
  int port = 0;
  std::unique_ptr<grpc::Server> server;

  grpc::Status refusal() const {
    return {static_cast<grpc::StatusCode>(ways.refuse_code), ways.refuse_text};
  }

  void welcome(const v1::Hello& hello, v1::Welcome& out) const {
    out.set_run(hello.run());
    out.set_spec(hello.spec());
    out.set_seed(ways.seed);
    out.set_steps(ways.steps);
    out.set_window(2);
    out.set_quota(ways.quota);
    out.set_limit(ways.limit);
    out.set_version(ways.version);
    out.set_library("fake");
  }

  grpc::Status Greet(grpc::ServerContext* context, const v1::Hello* hello, v1::Welcome* out) override {
    const std::lock_guard hold(mutex);
    tokens.push_back(token_of(*context));
    if (ways.refuse_code) return refusal();
    welcome(*hello, *out);
    return grpc::Status::OK;
  }

  grpc::Status Append(grpc::ServerContext* context, grpc::ServerReaderWriter<v1::Down, v1::Up>* call) override {
    v1::Up up;
    if (!call->Read(&up)) return grpc::Status::OK;
    v1::Down down;
    {
      const std::lock_guard hold(mutex);
      ++calls;
      tokens.push_back(token_of(*context));
      configs.push_back(up.hello().config());
      if (ways.refuse_code) return refusal();
      welcome(up.hello(), *down.mutable_welcome());
    }
    call->Write(down);
    std::uint64_t owned = 0;
    bool held = false;  // this call owns nothing any more
    std::map<std::string, std::uint64_t> streams;
    while (call->Read(&up)) {
      down.Clear();
      bool twice = false;
      {
        const std::lock_guard hold(mutex);
        held = held || ways.hold;
        if (held) continue;
        if (!take(up, owned, streams, down)) {
          down.set_owned(owned);
          call->Write(down);
          return {grpc::StatusCode::UNAVAILABLE, "dropped"};
        }
        down.set_owned(ways.overstate ? owned + 1000 : owned);
        twice = ways.repeat;
      }
      call->Write(down);
      if (twice) call->Write(down);
    }
    return grpc::Status::OK;
  }

  // Keeps what came; false where the connection is to break.
  bool take(const v1::Up& up, std::uint64_t& owned, std::map<std::string, std::uint64_t>& streams, v1::Down& down) {
    for (const std::string& payload : up.payloads()) {
      if (ways.drop_after > 0 && owned + 1 >= static_cast<std::uint64_t>(ways.drop_after)) return false;
      if (ways.unwanted && ways.unwanted(payload)) {
        v1::Down::Refusal& refused = *down.add_refusals();
        refused.set_index(owned);
        refused.set_kind("SpecError");
        refused.set_text("unwanted");
      } else {
        payloads.push_back(payload);
        v1::Fragment fragment;
        if (ways.settle && fragment.ParseFromString(payload) && fragment.kind() == v1::KIND_FRAGMENT) {
          auto& mark = *down.add_settled();
          mark.set_stream(fragment.stream());
          mark.set_fragments(++streams[fragment.stream()]);
        }
      }
      ++owned;
    }
    if (!up.probe().empty()) ++owned;
    changed.notify_all();
    return true;
  }

  grpc::Status Versions(grpc::ServerContext* context, const v1::VersionsRequest* request,
                        grpc::ServerWriter<v1::VersionsReply>* call) override {
    std::unique_lock hold(mutex);
    if (ways.refuse_code) return refusal();
    if (ways.versions_code) return {static_cast<grpc::StatusCode>(ways.versions_code), "no versions for you"};
    had.push_back(static_cast<std::size_t>(request->have_size()));
    std::size_t next = pushed.size();
    std::string payload = ways.announcement;
    while (!stopping && !context->IsCancelled()) {
      if (!payload.empty()) {
        v1::VersionsReply reply;
        reply.set_announcement(payload);
        hold.unlock();
        const bool well = call->Write(reply);
        hold.lock();
        if (!well) break;
        payload.clear();
      } else if (next < pushed.size()) {
        payload = pushed[next++];
      } else {
        changed.wait_for(hold, std::chrono::milliseconds(20));
      }
    }
    return grpc::Status::OK;
  }
};

FakeGateway::FakeGateway() : body_(std::make_unique<Body>()) { start(); }
FakeGateway::~FakeGateway() { stop(); }

void FakeGateway::start() {
  grpc::ServerBuilder builder;
  const std::string address = "127.0.0.1:" + std::to_string(body_->port);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &body_->port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(body_.get());
  {
    const std::lock_guard hold(body_->mutex);
    body_->stopping = false;
  }
  body_->server = builder.BuildAndStart();
}

void FakeGateway::stop() {
  if (!body_->server) return;
  {
    const std::lock_guard hold(body_->mutex);
    body_->stopping = true;
  }
  body_->changed.notify_all();
  body_->server->Shutdown(std::chrono::system_clock::now());
  body_->server->Wait();
  body_->server.reset();
}

std::string FakeGateway::address() const { return "127.0.0.1:" + std::to_string(body_->port); }

void FakeGateway::change(const std::function<void(Ways&)>& how) {
  const std::lock_guard hold(body_->mutex);
  how(body_->ways);
}

void FakeGateway::publish(std::int64_t version, const std::string& announcement) {
  {
    const std::lock_guard hold(body_->mutex);
    body_->ways.version = version;
    body_->ways.announcement = announcement;
    body_->pushed.push_back(announcement);
  }
  body_->changed.notify_all();
}

void FakeGateway::push(const std::string& announcement) {
  {
    const std::lock_guard hold(body_->mutex);
    body_->pushed.push_back(announcement);
  }
  body_->changed.notify_all();
}

std::vector<std::string> FakeGateway::payloads() const {
  const std::lock_guard hold(body_->mutex);
  return body_->payloads;
}

std::set<std::string> FakeGateway::distinct() const {
  const std::lock_guard hold(body_->mutex);
  return {body_->payloads.begin(), body_->payloads.end()};
}

std::vector<std::string> FakeGateway::tokens() const {
  const std::lock_guard hold(body_->mutex);
  return body_->tokens;
}

std::vector<std::string> FakeGateway::configs() const {
  const std::lock_guard hold(body_->mutex);
  return body_->configs;
}

int FakeGateway::calls() const {
  const std::lock_guard hold(body_->mutex);
  return body_->calls;
}

std::vector<std::size_t> FakeGateway::had() const {
  const std::lock_guard hold(body_->mutex);
  return body_->had;
}

}  // namespace farfield::testing
