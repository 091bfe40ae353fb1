// JSON in, the nouns of farfield/types.py out.
#include "farfield/spec.hpp"

#include <algorithm>
#include <set>

#include "farfield/error.hpp"
#include "farfield/sha256.hpp"

namespace farfield {
namespace {

constexpr const char* KINDS[] = {"box", "discrete", "multi_discrete", "multi_binary"};
constexpr const char* HEADS[] = {"categorical", "bernoulli", "gaussian", "epsilon"};
constexpr std::size_t LARGEST = std::size_t{1} << 40;  // elements of one array: more is a mistake, not memory

template <std::size_t N>
int index_of(const char* const (&names)[N], const std::string& name, const std::string& what) {
  for (std::size_t i = 0; i < N; ++i)
    if (name == names[i]) return static_cast<int>(i);
  corrupt_error(what + " is of the unknown kind '" + name + "'; install the same farfield on both sides");
}

Dtype read_dtype(const Json& json, const std::string& what) {
  const Dtype dtype = dtype_of(json.text());
  if (dtype == Dtype::None) corrupt_error(what + ": dtype '" + json.text() + "' cannot travel");
  return dtype;
}

template <class T, class F>
std::vector<T> read_list(const Json* json, F read) {
  std::vector<T> out;
  if (json)
    for (const Json& item : json->items()) out.push_back(read(item));
  return out;
}

Field read_field(const Json& json) {
  Field field;
  field.name = json.at("name").text();
  field.kind = static_cast<Field::Kind>(index_of(KINDS, json.at("kind").text(), "field '" + field.name + "'"));
  field.dtype = read_dtype(json.at("dtype"), "field '" + field.name + "'");
  field.shape = read_shape(json.find("shape"));
  field.sizes = read_list<std::int64_t>(json.find("sizes"), [](const Json& one) { return one.integer(); });
  field.low = read_list<double>(json.find("low"), [](const Json& one) { return one.real(); });
  field.high = read_list<double>(json.find("high"), [](const Json& one) { return one.real(); });
  if (const Json* mask = json.find("mask")) field.mask = mask->text();
  const bool discrete = field.kind == Field::Kind::Discrete || field.kind == Field::Kind::MultiDiscrete;
  if (discrete && field.sizes.size() != field.count())
    corrupt_error("field '" + field.name + "' has " + std::to_string(field.sizes.size()) + " sizes for the shape " +
                  text_of(field.shape) + "; expected one for each element");
  for (const std::int64_t size : field.sizes)
    if (size < 1 || static_cast<std::uint64_t>(size) > LARGEST)
      corrupt_error("field '" + field.name + "' has " + std::to_string(size) + " choices; expected 1 or more");
  return field;
}

Json write_field(const Field& field) {
  Json low = Json::list(), high = Json::list(), shape = Json::list(), sizes = Json::list();
  for (const double bound : field.low) low.add(bound);
  for (const double bound : field.high) high.add(bound);
  for (const std::size_t side : field.shape) shape.add(static_cast<std::uint64_t>(side));
  for (const std::int64_t size : field.sizes) sizes.add(size);
  Json made = Json::object();
  made.set("name", field.name).set("kind", KINDS[static_cast<int>(field.kind)]);
  made.set("dtype", name_of(field.dtype)).set("mask", field.mask);
  made.set("low", low).set("high", high).set("shape", shape).set("sizes", sizes);
  return made;
}

Node read_node(const Json& json) {
  Node node;
  node.name = json.at("name").text();
  node.op = json.at("op").text();
  node.inputs = read_list<std::string>(json.find("inputs"), [](const Json& one) { return one.text(); });
  if (const Json* tensors = json.find("tensors"))
    for (const auto& [role, tensor] : tensors->members()) node.tensors.emplace_back(role, tensor.text());
  if (const Json* options = json.find("options")) node.options = *options;
  return node;
}

Head read_head(const Json& json) {
  Head head;
  head.action = json.at("action").text();
  head.kind = static_cast<Head::Kind>(index_of(HEADS, json.at("kind").text(), "head '" + head.action + "'"));
  head.inputs = read_list<std::string>(json.find("inputs"), [](const Json& one) { return one.text(); });
  return head;
}

}  // namespace

Shape read_shape(const Json* json) {
  Shape shape;
  std::size_t count = 1;
  if (json)
    for (const Json& side : json->items()) {
      shape.push_back(side.natural());
      if (shape.back() > LARGEST || (count *= std::max<std::size_t>(shape.back(), 1)) > LARGEST)
        corrupt_error("JSON: the shape " + text_of(shape) + " is beyond what an array can hold");
    }
  return shape;
}

std::size_t Field::choices() const {
  std::size_t sum = 0;
  for (const std::int64_t size : sizes) sum += static_cast<std::size_t>(size);
  return sum;
}

Spec Spec::read(const Json& json) {
  Spec spec;
  spec.observations = read_list<Field>(&json.at("observations"), read_field);
  spec.actions = read_list<Field>(&json.at("actions"), read_field);
  return spec;
}

Json Spec::json() const {
  Json seen = Json::list(), acted = Json::list(), made = Json::object();
  for (const Field& field : observations) seen.add(write_field(field));
  for (const Field& field : actions) acted.add(write_field(field));
  made.set("observations", seen).set("actions", acted);
  return made;
}

std::string Spec::hash() const { return hex(sha256(write())); }

Network Network::read(const Json& json) {
  Network network;
  network.nodes = read_list<Node>(&json.at("nodes"), read_node);
  for (const auto& [name, tensor] : json.at("tensors").members()) {
    Tensor read;
    read.shape = read_shape(&tensor.at("shape"));
    if (const Json* dtype = tensor.find("dtype")) read.dtype = read_dtype(*dtype, "tensor '" + name + "'");
    network.tensors[name] = std::move(read);
  }
  network.heads = read_list<Head>(json.find("heads"), read_head);
  if (const Json* outputs = json.find("outputs"))
    for (const auto& [name, node] : outputs->members()) network.outputs[name] = node.text();
  if (const Json* memory = json.find("memory"))
    for (const auto& [node, shape] : memory->members()) network.memory.emplace_back(node, read_shape(&shape));
  return network;
}

const Node* Network::find(std::string_view name) const {
  for (const Node& node : nodes)
    if (node.name == name) return &node;
  return nullptr;
}

std::vector<std::string> Network::wanted() const {
  std::vector<std::string> names;
  for (const Head& head : heads)
    for (const std::string& input : head.inputs)
      if (std::find(names.begin(), names.end(), input) == names.end()) names.push_back(input);
  return names;
}

std::vector<const Node*> Network::needed(const std::vector<std::string>& wanted) const {
  std::map<std::string_view, const Node*> known;
  for (const Node& node : nodes) known.emplace(node.name, &node);
  std::set<std::string_view> reached;
  std::vector<std::string_view> waiting(wanted.begin(), wanted.end());
  while (!waiting.empty()) {
    const std::string_view name = waiting.back();
    waiting.pop_back();
    const auto found = known.find(name);
    if (found == known.end()) config_error("the network has no node '" + std::string(name) + "'");
    if (!reached.insert(name).second || found->second->op == "input") continue;
    for (const std::string& input : found->second->inputs) waiting.push_back(input);
  }
  std::vector<const Node*> found;
  for (const Node& node : nodes)
    if (reached.count(node.name)) found.push_back(&node);
  return found;
}

std::vector<std::string> Network::acting() const {
  std::set<std::string> reached, names;
  std::vector<std::string> waiting = wanted();
  while (!waiting.empty()) {
    const Node* node = find(waiting.back());
    waiting.pop_back();
    if (!node || !reached.insert(node->name).second) continue;  // what is no node is a column
    waiting.insert(waiting.end(), node->inputs.begin(), node->inputs.end());
    for (const auto& [role, tensor] : node->tensors) names.insert(tensor);
  }
  return {names.begin(), names.end()};
}

Version Version::read(const Json& json) {
  Version version;
  version.run = json.at("run").text();
  version.number = json.at("number").natural();
  version.attempt = json.at("attempt").natural();
  version.steps = json.at("steps").natural();
  version.spec = Spec::read(json.at("spec"));
  version.network = Network::read(json.at("network"));
  for (const auto& [name, tensor] : json.at("tensors").members()) {
    TensorRef& read = version.tensors[name];
    read.dtype = read_dtype(tensor.at("dtype"), "tensor '" + name + "'");
    read.shape = read_shape(&tensor.at("shape"));
    read.sha256 = tensor.at("sha256").text();
  }
  return version;
}

}  // namespace farfield
