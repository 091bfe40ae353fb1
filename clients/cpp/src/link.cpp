#include "link.hpp"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <utility>

#include "farfield/sha256.hpp"
#include "farfield/v1/farfield.grpc.pb.h"

namespace farfield::link {

namespace wire = farfield::v1;

namespace {

constexpr char kLibrary[] = "farfield-cpp " FARFIELD_VERSION;
constexpr std::uint32_t kProtocol = 1;

bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

bool local(const std::string& address) {
  return starts(address, "unix:") || starts(address, "127.") || starts(address, "localhost:") ||
         starts(address, "[::1]");
}

grpc::ChannelArguments arguments(const Target& target) {
  grpc::ChannelArguments made;
  made.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  made.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  made.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);  // how long one attempt may take
  made.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);    // a new channel is a new connection
  if (local(target.address)) made.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  made.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);  // a connection of which only this end is left is noticed
  made.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  made.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  made.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  if (!target.name.empty()) made.SetSslTargetNameOverride(target.name);
  made.SetMaxReceiveMessageSize(-1);  // weights; their tensors are checked one by one
  made.SetMaxSendMessageSize(-1);     // the welcome says what a payload may be
  return made;
}

std::shared_ptr<grpc::ChannelCredentials> credentials(const Target& target) {
  if (!target.tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = target.ca;
  options.pem_cert_chain = target.cert;
  options.pem_private_key = target.key;
  return grpc::SslCredentials(options);
}

void fill(wire::Hello& message, const Hello& hello) {
  message.set_run(hello.run);
  message.set_policy(hello.policy);
  message.set_spec(hello.spec);
  message.set_client(hello.client);
  message.set_config(hello.config);
  message.set_library(kLibrary);
  message.set_protocol(kProtocol);
}

Welcome read(const wire::Welcome& message) {
  Welcome welcome;
  welcome.run = message.run();
  welcome.spec = message.spec();
  welcome.library = message.library();
  welcome.seed = message.seed();
  welcome.quota = message.quota();
  welcome.limit = message.limit();
  welcome.steps = message.steps();
  welcome.window = message.window();
  welcome.credit_window = message.credit_window();
  welcome.version = message.version();
  welcome.created = message.created();
  return welcome;
}

Outcome read(const grpc::Status& status) { return {static_cast<int>(status.error_code()), status.error_message()}; }

}  // namespace

bool Outcome::final() const {
  switch (static_cast<grpc::StatusCode>(code)) {
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::FAILED_PRECONDITION: return true;
    default: return false;
  }
}

struct Channel::Body {
  std::unique_ptr<wire::Gateway::Stub> stub;
  std::string token;

  void introduce(grpc::ClientContext& context) const {
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  }
};

Channel::Channel(const Target& target) : body(std::make_unique<Body>()) {
  body->token = target.token;
  body->stub =
      wire::Gateway::NewStub(grpc::CreateCustomChannel(target.address, credentials(target), arguments(target)));
}

Channel::~Channel() = default;

Outcome Channel::greet(const Hello& hello, double seconds, Welcome& welcome) {
  grpc::ClientContext context;
  body->introduce(context);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(std::int64_t(seconds * 1000)));
  wire::Hello request;
  fill(request, hello);
  wire::Welcome reply;
  const grpc::Status status = body->stub->Greet(&context, request, &reply);
  if (status.ok()) welcome = read(reply);
  return read(status);
}

struct Append::Body {
  explicit Body(Channel& channel) : channel(*channel.body) { this->channel.introduce(context); }
  Channel::Body& channel;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<wire::Up, wire::Down>> call;
};

Append::Append(Channel& channel) : body_(std::make_unique<Body>(channel)) {}

Append::~Append() {
  if (body_->call) {
    cancel();
    finish();
  }
}

bool Append::open(const Hello& hello) {
  body_->call = body_->channel.stub->Append(&body_->context);
  wire::Up first;
  fill(*first.mutable_hello(), hello);
  return body_->call->Write(first);
}

bool Append::send(std::vector<std::string> payloads) {
  wire::Up message;
  for (std::string& payload : payloads) message.add_payloads(std::move(payload));
  return body_->call->Write(message);
}

bool Append::probe(const std::string& bytes) {
  wire::Up message;
  message.set_probe(bytes);
  return body_->call->Write(message);
}

bool Append::receive(Received& received) {
  wire::Down message;
  if (!body_->call->Read(&message)) return false;
  received = Received();
  received.welcomed = message.has_welcome();
  if (received.welcomed) received.welcome = read(message.welcome());
  received.owned = message.owned();
  for (const auto& refusal : message.refusals()) {
    received.refusals.push_back({refusal.index(), refusal.kind(), refusal.text()});
  }
  for (const auto& mark : message.settled()) {
    received.settled.emplace_back(hex(mark.stream().data(), mark.stream().size()), mark.fragments());
  }
  return true;
}

void Append::cancel() { body_->context.TryCancel(); }

Outcome Append::finish() {
  const Outcome outcome = read(body_->call->Finish());
  body_->call.reset();
  return outcome;
}

struct Versions::Body {
  explicit Body(Channel& channel) : channel(*channel.body) { this->channel.introduce(context); }
  Channel::Body& channel;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<wire::VersionsReply>> call;
};

Versions::Versions(Channel& channel) : body_(std::make_unique<Body>(channel)) {}

Versions::~Versions() {
  if (body_->call) {
    cancel();
    finish();
  }
}

void Versions::open(const Hello& hello, const std::map<std::string, std::string>& have) {
  wire::VersionsRequest request;
  fill(*request.mutable_hello(), hello);
  for (const auto& [tensor, digest] : have) (*request.mutable_have())[tensor] = digest;
  body_->call = body_->channel.stub->Versions(&body_->context, request);
}

bool Versions::receive(std::string& announcement) {
  wire::VersionsReply reply;
  if (!body_->call->Read(&reply)) return false;
  announcement = std::move(*reply.mutable_announcement());
  return true;
}

void Versions::cancel() { body_->context.TryCancel(); }

Outcome Versions::finish() {
  const Outcome outcome = read(body_->call->Finish());
  body_->call.reset();
  return outcome;
}

}  // namespace farfield::link
