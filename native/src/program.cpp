// A network and its tensors in, a flat list of operations out.
#include "farfield/program.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>

#include "farfield/error.hpp"
#include "halves.hpp"
#include "operators.hpp"

namespace farfield {
namespace {

template <class From, class To>
void convert(const void* data, std::size_t count, float* out) {
  static_assert(sizeof(To) == sizeof(float), "buffers hold 32 bits");
  const From* from = static_cast<const From*>(data);
  for (std::size_t i = 0; i < count; ++i) {
    const To value = static_cast<To>(from[i]);
    std::memcpy(out + i, &value, sizeof value);
  }
}

template <class To>
void convert_any(const void* data, Dtype dtype, std::size_t count, float* out) {
  switch (dtype) {
    case Dtype::Bool:
    case Dtype::Uint8: return convert<std::uint8_t, To>(data, count, out);
    case Dtype::Int8: return convert<std::int8_t, To>(data, count, out);
    case Dtype::Int16: return convert<std::int16_t, To>(data, count, out);
    case Dtype::Int32: return convert<std::int32_t, To>(data, count, out);
    case Dtype::Int64: return convert<std::int64_t, To>(data, count, out);
    case Dtype::Uint16: return convert<std::uint16_t, To>(data, count, out);
    case Dtype::Uint32: return convert<std::uint32_t, To>(data, count, out);
    case Dtype::Uint64: return convert<std::uint64_t, To>(data, count, out);
    case Dtype::Float32: return convert<float, To>(data, count, out);
    case Dtype::Float64: return convert<double, To>(data, count, out);
    case Dtype::Float16:
      for (std::size_t i = 0; i < count; ++i) {
        const float value = from_half(static_cast<const std::uint16_t*>(data)[i]);
        convert<float, To>(&value, 1, out + i);
      }
      return;
    case Dtype::None: spec_error("an observation without a dtype cannot be read");
  }
}

}  // namespace

Tensors tensors_of(const Columns& columns) {
  return [&columns](const std::string& name) -> View {
    for (const auto& [known, array] : columns)
      if (known == name) return array;
    return {};
  };
}

Floats::Floats(std::size_t count) : own_(new std::byte[count * sizeof(float) + 64]()), size_(count) {
  const auto at = reinterpret_cast<std::uintptr_t>(own_.get());
  data_ = reinterpret_cast<float*>(own_.get() + (64 - at % 64) % 64);
}

struct Program::Plan {
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<State> states;
  std::vector<std::size_t> sources;  // of outputs, in the buffers
  std::vector<Operation> operations;
  std::vector<Floats> owned;
  std::size_t input_width = 0, output_width = 0, state_width = 0, width = 0;
};

Program::Program(const Network& network, const Tensors& tensors, const std::vector<std::string>& wanted)
    : plan_(std::make_unique<Plan>()) {
  Sheet sheet(tensors);
  std::map<std::string, Value> values;
  const std::vector<const Node*> nodes = network.needed(wanted);
  for (const auto& [name, shape] : network.memory) {  // in the network's order, which is that of the columns
    const auto node = std::find_if(nodes.begin(), nodes.end(), [&](const Node* one) { return one->name == name; });
    if (node == nodes.end()) continue;
    plan_->states.push_back({name, shape, count_of(shape), plan_->state_width});
    plan_->state_width += count_of(shape);
  }
  for (const Node* node : nodes) {
    if (!known(node->op)) config_error("node '" + node->name + "' has the unknown operator '" + node->op + "'");
    if (node->op == "input") {
      if (node->inputs.size() != 1) config_error("node '" + node->name + "' must read one column");
      const Json *shape = node->options.find("shape"), *dtype = node->options.find("dtype");
      if (!shape || !dtype) config_error("node '" + node->name + "' must say the shape and dtype of its column");
      if (dtype->text() != "float32" && dtype->text() != "int32")
        config_error("node '" + node->name + "' reads " + dtype->text() + "; expected float32 or int32");
      Value value{read_shape(shape), 0, dtype->text() == "int32"};
      value.offset = sheet.room(value.width());
      plan_->inputs.push_back({node->inputs[0], value.shape, value.integers, value.width(), value.offset});
      plan_->input_width += value.width();
      values[node->name] = value;
      continue;
    }
    std::vector<Value> inputs;
    for (const std::string& name : node->inputs) {
      if (!values.count(name)) config_error("node '" + node->name + "' reads '" + name + "', which stands behind it");
      inputs.push_back(values[name]);
    }
    if (node->op != "gru" && node->op != "lstm") {
      values[node->name] = sheet.add(network, *node, std::move(inputs));
      continue;
    }
    const auto state = std::find_if(plan_->states.begin(), plan_->states.end(),
                                    [&](const State& one) { return one.node == node->name; });
    if (inputs.size() != 1 || state == plan_->states.end())
      config_error("node '" + node->name + "' remembers, but the network's memory does not name it");
    values[node->name] = sheet.recur(network, *node, inputs[0], state->offset);
    if (state->width != values[node->name].width() * (node->op == "lstm" ? 2 : 1))
      config_error("node '" + node->name + "' has memory " + text_of(state->shape) +
                   ", which does not fit its tensors");
  }
  for (const std::string& name : wanted) {
    const Value& value = values[name];
    if (value.integers) config_error("node '" + name + "' is wanted, but holds whole numbers");
    plan_->outputs.push_back({name, value.shape, value.width(), plan_->output_width});
    plan_->sources.push_back(value.offset);
    plan_->output_width += value.width();
  }
  plan_->operations = std::move(sheet.operations);
  plan_->owned = std::move(sheet.owned);
  plan_->width = sheet.width();
}

Program::~Program() = default;

const std::vector<Program::Input>& Program::inputs() const { return plan_->inputs; }
const std::vector<Program::Output>& Program::outputs() const { return plan_->outputs; }
const std::vector<Program::State>& Program::states() const { return plan_->states; }
std::size_t Program::input_width() const { return plan_->input_width; }
std::size_t Program::output_width() const { return plan_->output_width; }
std::size_t Program::state_width() const { return plan_->state_width; }

Floats Program::buffers(std::size_t lanes) const { return Floats(plan_->width * lanes + PAD); }

bool Program::like(const Program& other) const {
  const auto same = [](const Input& a, const Input& b) {
    return a.column == b.column && a.shape == b.shape && a.integers == b.integers && a.offset == b.offset;
  };
  return plan_->width == other.plan_->width && plan_->output_width == other.plan_->output_width &&
         plan_->state_width == other.plan_->state_width &&
         std::equal(inputs().begin(), inputs().end(), other.inputs().begin(), other.inputs().end(), same);
}

float* Program::input(const Floats& buffers, std::size_t i, std::size_t lanes) const {
  return buffers.data() + plan_->inputs[i].offset * lanes;
}

void Program::fill(const Floats& buffers, std::size_t i, std::size_t lanes, const void* data, Dtype dtype) const {
  const Input& one = plan_->inputs[i];
  float* to = input(buffers, i, lanes);
  const std::size_t count = one.width * lanes;
  if (dtype == (one.integers ? Dtype::Int32 : Dtype::Float32)) {
    if (count) std::memcpy(to, data, count * sizeof(float));
  } else if (one.integers) {
    convert_any<std::int32_t>(data, dtype, count, to);
  } else {
    convert_any<float>(data, dtype, count, to);
  }
}

void Program::run(const Floats& buffers, std::size_t lanes, const float* before, float* after, float* values) const {
  static const Kernels& kernels = best_kernels();
  const Frame frame{buffers.data(), lanes, before, after, kernels};
  for (const Operation& op : plan_->operations) op.run(op, frame);
  for (std::size_t i = 0; i < plan_->outputs.size(); ++i) {
    const Output& one = plan_->outputs[i];
    const float* from = frame.at(plan_->sources[i]);
    for (std::size_t lane = 0; lane < lanes; ++lane)
      std::memcpy(values + lane * plan_->output_width + one.offset, from + lane * one.width, one.width * sizeof(float));
  }
}

}  // namespace farfield
