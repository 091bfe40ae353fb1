// Every operator: its inputs' buffers in, its own buffer and the operation that fills it out.
#include "operators.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "farfield/error.hpp"

namespace farfield {

void wrong(const Node& node, const std::string& text) {
  config_error("node '" + node.name + "' (" + node.op + ") " + text + "; the network was not made by farfield");
}

const Json& option(const Node& node, const char* key) {
  const Json* found = node.options.find(key);
  if (!found) wrong(node, std::string("lacks the option '") + key + "'");
  return *found;
}

std::size_t natural(const Node& node, const char* key, std::size_t least) {
  const std::uint64_t value = option(node, key).natural();
  if (value < least || value > MOST) wrong(node, std::string("has the option ") + key + " = " + std::to_string(value));
  return static_cast<std::size_t>(value);
}

namespace {

void run_param(const Operation& op, const Frame& f) {
  for (std::size_t lane = 0; lane < f.lanes; ++lane)
    std::memcpy(f.at(op.out) + lane * op.width, op.first, op.width * sizeof(float));
}

void run_convert(const Operation& op, const Frame& f) {
  const float* x = f.at(op.a);
  float* y = f.at(op.out);
  for (std::size_t i = 0; i < f.lanes * op.width; ++i) {
    std::int32_t value;
    std::memcpy(&value, x + i, sizeof value);
    y[i] = static_cast<float>(value);
  }
}

}  // namespace

std::size_t Sheet::room(std::size_t width) {
  if (width > MOST || width_ > MOST)
    config_error("the network needs more than a gigabyte for one lane; make it smaller");
  const std::size_t offset = width_;
  width_ += padded(std::max<std::size_t>(width, 1));
  return offset;
}

Sheet::Read Sheet::tensor(const Network& network, const Node& node, const std::string& role) {
  const auto named =
      std::find_if(node.tensors.begin(), node.tensors.end(), [&](auto& one) { return one.first == role; });
  if (named == node.tensors.end()) wrong(node, "lacks the tensor '" + role + "'");
  const auto told = network.tensors.find(named->second);
  if (told == network.tensors.end()) wrong(node, "reads the tensor '" + named->second + "', which is not declared");
  const View came = tensors_(named->second);
  const Shape& shape = told->second.shape;
  const std::string label = "tensor '" + named->second + "'";
  if (!came.data)
    corrupt_error(label + ": expected " + name_of(told->second.dtype) + " " + text_of(shape) +
                  ", came nothing; publish the version again");
  const Shape found = came.shape ? Shape(came.shape, came.shape + came.axes) : Shape{came.count};
  if (came.dtype != Dtype::Float32 || told->second.dtype != Dtype::Float32 || came.count != count_of(shape) ||
      (came.shape && found != shape))
    corrupt_error(label + ": expected float32 " + text_of(shape) + ", came " + name_of(came.dtype) + " " +
                  text_of(found) + "; load it with the network that it was made for");
  return {came, shape};
}

/// Copies a tensor as one row, its end filled up with zeros.
const float* Sheet::vector(const Read& tensor) { return matrix(tensor.data(), 1, tensor.view.count); }

/// Copies a matrix, its rows filled up with zeros.
const float* Sheet::matrix(const float* data, std::size_t rows, std::size_t columns) {
  owned.emplace_back(std::max<std::size_t>(rows, 1) * padded(std::max<std::size_t>(columns, 1)));
  float* to = owned.back().data();
  for (std::size_t row = 0; row < rows && columns; ++row)
    std::memcpy(to + row * padded(columns), data + row * columns, columns * sizeof(float));
  return to;
}

Value Sheet::converted(const Value& value) {
  if (!value.integers) return value;
  Operation op;
  op.run = run_convert;
  op.a = value.offset;
  op.width = value.width();
  op.out = room(op.width);
  operations.push_back(op);
  return {value.shape, op.out, false};
}

Value Sheet::add(const Network& network, const Node& node, std::vector<Value> inputs) {
  const std::string& op = node.op;
  if (op == "param") {
    const Read found = tensor(network, node, "tensor");
    Operation made;
    made.run = run_param;
    made.first = vector(found);
    made.width = found.view.count;
    made.out = room(made.width);
    operations.push_back(made);
    return {found.shape, made.out, false};
  }
  const std::size_t expected = op == "add" || op == "mask" ? 2 : 1;
  if (op == "concat" ? inputs.empty() : inputs.size() != expected)
    wrong(node, "has " + std::to_string(inputs.size()) + " inputs");
  if (op == "reshape") {
    Value made = inputs[0];
    made.shape = read_shape(&option(node, "shape"));
    if (made.width() != inputs[0].width())
      wrong(node, "cannot make " + text_of(made.shape) + " of " + text_of(inputs[0].shape));
    return made;
  }
  if (op == "one_hot" || op == "embed") return choices(network, node, inputs[0]);
  for (Value& input : inputs) input = converted(input);
  if (op == "dense") return dense(network, node, inputs[0]);
  if (op == "conv2d") return conv2d(network, node, inputs[0]);
  if (op == "max_pool") return max_pool(node, inputs[0]);
  if (op == "normalise") return normalise(network, node, inputs[0]);
  if (op == "concat") return concat(node, inputs);
  if (op == "add" || op == "mask") return pair(node, inputs[0], inputs[1]);
  return plain(node, inputs[0]);
}

bool known(const std::string& op) {
  static const char* const OPS[] = {"input",    "param", "normalise", "scale",  "dense",   "conv2d",
                                    "max_pool", "embed", "one_hot",   "concat", "reshape", "add",
                                    "centre",   "tanh",  "relu",      "mask",   "gru",     "lstm"};
  return std::find(std::begin(OPS), std::end(OPS), op) != std::end(OPS);
}

}  // namespace farfield
