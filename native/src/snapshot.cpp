// A version and its tensors in, all that acting with it needs out.
#include "farfield/snapshot.hpp"

#include <utility>

#include "farfield/error.hpp"
#include "kernels.hpp"

namespace farfield {
namespace {

std::string layout_of(const Version& version, const Program& program) {
  Json heads = Json::list(), outputs = Json::list(), states = Json::list();
  for (const Head& head : version.network.heads) {
    Json made = Json::list();
    made.add(head.action).add(static_cast<int>(head.kind));
    for (const std::string& input : head.inputs) made.add(input);
    heads.add(made);
  }
  for (const Program::Output& output : program.outputs()) outputs.add(output.node).add(text_of(output.shape));
  for (const Program::State& state : program.states()) states.add(state.node).add(text_of(state.shape));
  Json whole = Json::list();
  whole.add(version.spec.hash()).add(heads).add(outputs).add(states);
  return whole.write();
}

/// Refuses tensors with which nothing can be decided.
void check(const Version& version, const Tensors& tensors) {
  for (const std::string& name : version.network.acting()) {
    const View tensor = tensors(name);
    if (tensor.data && tensor.dtype == Dtype::Float32 &&
        !best_kernels().finite(static_cast<const float*>(tensor.data), tensor.count))
      corrupt_error("tensor '" + name + "' is not finite; publish another version");
  }
}

}  // namespace

Snapshot::Snapshot(Version given, const Tensors& tensors)
    : version(std::move(given)),
      spec_hash(version.spec.hash()),
      program(version.network, tensors, version.network.wanted()),
      heads(version.spec, version.network, program.outputs()),
      blocks(noise_blocks(version.spec, version.network)),
      layout(layout_of(version, program)) {}

std::shared_ptr<const Snapshot> Snapshot::make(Version version, const Tensors& tensors) {
  const std::string label = "version " + std::to_string(version.number) + " of '" + version.run + "': ";
  try {
    check(version, tensors);
    return std::make_shared<const Snapshot>(std::move(version), tensors);
  } catch (const Error& error) {
    throw Error(error.kind, label + error.what());
  }
}

std::shared_ptr<const Snapshot> Snapshot::make(std::string_view version_json, const Tensors& tensors) {
  return make(Version::parse(version_json), tensors);
}

void Slot::put(std::shared_ptr<const Snapshot> snapshot) {
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    snapshot_.swap(snapshot);
    generation_.fetch_add(1, std::memory_order_release);
  }
  // What was there before is let go here, outside of the lock.
}

std::shared_ptr<const Snapshot> Slot::get() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  return snapshot_;
}

}  // namespace farfield
