#include "nets.hpp"

#include <cmath>

#include "farfield/sha256.hpp"
#include "farfield/v1/farfield.pb.h"
#include "random.hpp"

namespace farfield::testing {

namespace {

Json node(const std::string& name, const std::string& op, const std::string& input) {
  Json made = Json::object();
  made.set("name", name).set("op", op).set("inputs", Json(std::vector<Json>{input}));
  Json tensors = Json::object();
  if (op == "dense") tensors.set("kernel", name + "/kernel").set("bias", name + "/bias");
  made.set("tensors", tensors).set("options", Json::object());
  return made;
}

Json shape_of(const Array& array) {
  Json shape = Json::list();
  for (const std::size_t size : array.shape) shape.add(static_cast<std::uint64_t>(size));
  return shape;
}

struct Layers {
  Json nodes = Json::list();
  Columns tensors;
  Dice dice{7};

  void dense(const std::string& name, const std::string& input, std::size_t in, std::size_t out, float scale) {
    nodes.add(node(name, "dense", input));
    Array kernel(Dtype::Float32, {in, out});
    for (std::size_t i = 0; i < in * out; ++i) kernel.as<float>()[i] = scale * static_cast<float>(dice.unit() - 0.5);
    tensors.emplace_back(name + "/kernel", kernel);
    tensors.emplace_back(name + "/bias", Array(Dtype::Float32, {out}));
  }
};

void fill(v1::Column& column, const std::string& name, const Array& array) {
  column.set_name(name);
  column.set_dtype(static_cast<v1::Dtype>(array.dtype));
  for (const std::size_t size : array.shape) column.add_shape(size);
  column.set_data(array.bytes.data(), array.bytes.size());
}

}  // namespace

Spec lander_spec() {
  Spec spec;
  spec.observations = {box("obs", {8})};
  spec.actions = {discrete("action", 4)};
  return spec;
}

Spec masked_spec() {
  Spec spec;
  spec.observations = {box("obs", {8}), mask("mask", 4)};
  spec.actions = {discrete("action", 4, "mask")};
  return spec;
}

Net make_net(std::uint64_t number, std::size_t width, int favourite, const Spec& spec) {
  Layers layers;
  Json input = node("input/obs", "input", "obs");
  Json options = Json::object();
  options.set("dtype", "float32").set("shape", Json(std::vector<Json>{8}));
  input.set("options", options);
  layers.nodes.add(input);
  layers.dice = Dice(number);
  layers.dense("policy/0", "input/obs", 8, width, 1.0F);
  layers.nodes.add(node("policy/0/tanh", "tanh", "policy/0"));
  layers.dense("policy/1", "policy/0/tanh", width, width, 0.3F);
  layers.nodes.add(node("policy/1/tanh", "tanh", "policy/1"));
  layers.dense("logits", "policy/1/tanh", width, 4, favourite < 0 ? 0.1F : 0.0F);
  const bool masked = spec.observations.size() > 1;
  if (masked) {
    Json given = node("input/mask", "input", "mask");
    Json shape = Json::object();
    given.set("options", shape.set("dtype", "float32").set("shape", Json(std::vector<Json>{4})));
    layers.nodes.add(given);
    Json over = node("masked", "mask", "logits");
    Json value = Json::object();
    over.set("inputs", Json(std::vector<Json>{"logits", "input/mask"})).set("options", value.set("value", -1e9));
    layers.nodes.add(over);
  }
  if (favourite >= 0) layers.tensors.back().second.as<float>()[favourite] = 50.0F;

  Json tensors = Json::object();
  Json references = Json::object();
  for (const auto& [name, array] : layers.tensors) {
    Json tensor = Json::object();
    tensors.set(name, tensor.set("dtype", "float32").set("shape", shape_of(array)).set("trainable", true));
    Json reference = Json::object();
    reference.set("dtype", "float32").set("shape", shape_of(array));
    references.set(name, reference.set("sha256", hex(sha256(array.bytes.data(), array.bytes.size()))));
  }
  Json head = Json::object();
  const Json last = Json(std::vector<Json>{masked ? "masked" : "logits"});
  head.set("action", "action").set("kind", "categorical").set("inputs", last);
  Json network = Json::object();
  network.set("nodes", layers.nodes).set("tensors", tensors).set("heads", Json(std::vector<Json>{head}));
  network.set("outputs", Json::object()).set("memory", Json::object());
  Json version = Json::object();
  version.set("run", "lander").set("number", number).set("attempt", 1).set("parent", Json()).set("steps", 0);
  version.set("spec", spec.json()).set("network", network).set("tensors", references);
  return {version.write(), layers.tensors};
}

std::string announce(const Net& net, const std::string& only) {
  v1::Announcement message;
  message.set_schema(1);
  message.set_kind(v1::KIND_ANNOUNCEMENT);
  message.set_version(net.version_json);
  message.set_full(only.empty());
  for (const auto& [name, array] : net.tensors) {
    if (name.rfind(only, 0) == 0) fill(*message.add_tensors(), name, array);
  }
  message.set_length(1);
  message.set_length(static_cast<std::uint32_t>(message.ByteSizeLong()));
  return message.SerializeAsString();
}

}  // namespace farfield::testing
