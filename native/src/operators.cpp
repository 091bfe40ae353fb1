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

float real(const Node& node, const char* key) { return static_cast<float>(option(node, key).real()); }

/// Maps elements of the outcome of a broadcast to those of one input.
std::vector<std::uint32_t> spread(const Shape& from, const Shape& to) {
  std::vector<std::uint32_t> map(count_of(to));
  for (std::size_t i = 0; i < map.size(); ++i) {
    std::size_t left = i, at = 0, step = 1;
    for (std::size_t axis = to.size(); axis-- > 0;) {
      const std::size_t place = left % to[axis];
      left /= to[axis];
      if (from[axis] != 1) at += place * step;
      step *= from[axis];
    }
    map[i] = static_cast<std::uint32_t>(at);
  }
  return map;
}

void run_dense(const Operation& op, const Frame& f) {
  f.kernels.dense(f.at(op.a), f.lanes * op.rows, op.in, op.first, op.second, op.width, f.at(op.out));
}

void run_tanh(const Operation& op, const Frame& f) { f.kernels.tanh(f.at(op.a), f.at(op.out), f.lanes * op.width); }

void run_relu(const Operation& op, const Frame& f) {
  const float* x = f.at(op.a);
  float* y = f.at(op.out);
  for (std::size_t i = 0; i < f.lanes * op.width; ++i) y[i] = x[i] > 0 ? x[i] : 0;
}

void run_scale(const Operation& op, const Frame& f) {
  const float* x = f.at(op.a);
  float* y = f.at(op.out);
  for (std::size_t i = 0; i < f.lanes * op.width; ++i) y[i] = x[i] * op.factor + op.offset;
}

void run_normalise(const Operation& op, const Frame& f) {
  for (std::size_t lane = 0; lane < f.lanes; ++lane)
    f.kernels.normalise(f.at(op.a) + lane * op.width, op.first, op.second, op.factor, f.at(op.out) + lane * op.width,
                        op.width);
}

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

void run_centre(const Operation& op, const Frame& f) {
  const float* x = f.at(op.a);
  float* y = f.at(op.out);
  for (std::size_t row = 0; row < f.lanes * op.rows; ++row, x += op.width, y += op.width) {
    float sum = 0;
    for (std::size_t i = 0; i < op.width; ++i) sum += x[i];
    sum /= static_cast<float>(op.width);
    for (std::size_t i = 0; i < op.width; ++i) y[i] = x[i] - sum;
  }
}

void run_add(const Operation& op, const Frame& f) {
  for (std::size_t lane = 0; lane < f.lanes; ++lane) {
    const float *a = f.at(op.a) + lane * op.in, *b = f.at(op.b) + lane * op.other;
    float* y = f.at(op.out) + lane * op.width;
    if (op.left.empty())
      for (std::size_t i = 0; i < op.width; ++i) y[i] = a[i] + b[i];
    else
      for (std::size_t i = 0; i < op.width; ++i) y[i] = a[op.left[i]] + b[op.right[i]];
  }
}

void run_mask(const Operation& op, const Frame& f) {
  const float *x = f.at(op.a), *allowed = f.at(op.b);
  float* y = f.at(op.out);
  for (std::size_t i = 0; i < f.lanes * op.width; ++i) y[i] = allowed[i] > 0 ? x[i] : op.factor;
}

void run_concat(const Operation& op, const Frame& f) {
  float* y = f.at(op.out);
  for (std::size_t lane = 0; lane < f.lanes; ++lane)
    for (const auto& [offset, width] : op.parts) {
      std::memcpy(y, f.at(offset) + lane * width, width * sizeof(float));
      y += width;
    }
}

void run_one_hot(const Operation& op, const Frame& f) {
  const float* x = f.at(op.a);
  float* y = f.at(op.out);
  std::fill_n(y, f.lanes * op.width, 0.0f);
  for (std::size_t lane = 0; lane < f.lanes; ++lane)
    for (const std::int64_t size : op.sizes) {
      std::int32_t value;
      std::memcpy(&value, x++, sizeof value);
      if (value >= 0 && value < size) y[value] = 1;
      y += size;
    }
}

void run_embed(const Operation& op, const Frame& f) {
  const float* x = f.at(op.a);
  float* y = f.at(op.out);
  for (std::size_t lane = 0; lane < f.lanes; ++lane) {
    const float* table = op.first;
    for (const std::int64_t size : op.sizes) {
      std::int32_t value;
      std::memcpy(&value, x++, sizeof value);
      const std::int64_t row = std::clamp<std::int64_t>(value, 0, size - 1);
      std::memcpy(y, table + row * op.depth, op.depth * sizeof(float));
      table += size * op.depth;
      y += op.depth;
    }
  }
}

}  // namespace

std::size_t Sheet::room(std::size_t width) {
  if (width > MOST || width_ > MOST) config_error("the network needs more than a gigabyte for one lane; make it smaller");
  const std::size_t offset = width_;
  width_ += padded(std::max<std::size_t>(width, 1));
  return offset;
}

Sheet::Read Sheet::tensor(const Network& network, const Node& node, const std::string& role) {
  const auto named = std::find_if(node.tensors.begin(), node.tensors.end(), [&](auto& one) { return one.first == role; });
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

void Sheet::multiply(const Node&, std::size_t from, std::size_t rows, std::size_t in, const float* kernel,
                     const float* bias, std::size_t width, std::size_t to) {
  Operation op;
  op.run = run_dense;
  op.a = from;
  op.rows = rows;
  op.in = in;
  op.first = kernel;
  op.second = bias;
  op.width = width;
  op.out = to;
  operations.push_back(std::move(op));
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

Value Sheet::dense(const Network& network, const Node& node, const Value& x) {
  const Read kernel = tensor(network, node, "kernel"), bias = tensor(network, node, "bias");
  if (x.shape.size() != 1 || kernel.shape.size() != 2 || kernel.shape[0] != x.shape[0] ||
      bias.view.count != kernel.shape[1])
    wrong(node, "has the kernel " + text_of(kernel.shape) + " and the bias " + text_of(bias.shape) + " for inputs " +
                    text_of(x.shape));
  const std::size_t in = kernel.shape[0], width = kernel.shape[1], out = room(width);
  multiply(node, x.offset, 1, in, matrix(kernel.data(), in, width), vector(bias), width, out);
  return {{width}, out, false};
}

Value Sheet::normalise(const Network& network, const Node& node, const Value& x) {
  const Read mean = tensor(network, node, "mean"), var = tensor(network, node, "var");
  if (mean.shape != x.shape || var.shape != x.shape)
    wrong(node, "has statistics " + text_of(mean.shape) + " for inputs " + text_of(x.shape));
  Operation op;
  op.run = run_normalise;
  op.a = x.offset;
  op.width = x.width();
  op.out = room(op.width);
  op.factor = real(node, "clip");
  op.first = vector(mean);
  const float epsilon = real(node, "epsilon");
  owned.emplace_back(padded(std::max<std::size_t>(op.width, 1)));
  float* deviation = owned.back().data();
  std::fill_n(deviation, owned.back().size(), 1.0f);
  for (std::size_t i = 0; i < op.width; ++i) deviation[i] = std::sqrt(var.data()[i] + epsilon);
  op.second = deviation;
  operations.push_back(op);
  return {x.shape, op.out, false};
}

Value Sheet::choices(const Network& network, const Node& node, const Value& x) {
  Operation op;
  std::size_t sum = 0;
  for (const Json& size : option(node, "sizes").items()) {
    op.sizes.push_back(size.integer());
    if (op.sizes.back() < 1 || op.sizes.back() > std::int64_t(MOST)) wrong(node, "has a size out of range");
    sum += static_cast<std::size_t>(op.sizes.back());
  }
  if (!x.integers || op.sizes.size() != x.width()) wrong(node, "needs one whole number for each of its sizes");
  op.a = x.offset;
  op.run = run_one_hot;
  op.width = sum;
  if (node.op == "embed") {
    const Read table = tensor(network, node, "table");
    if (table.shape.size() != 2 || table.shape[0] < sum)
      wrong(node, "has the table " + text_of(table.shape) + " for " + std::to_string(sum) + " values");
    op.run = run_embed;
    op.depth = table.shape[1];
    op.width = op.sizes.size() * op.depth;
    owned.emplace_back(std::max<std::size_t>(table.view.count, 1));
    if (table.view.count) std::memcpy(owned.back().data(), table.data(), table.view.count * sizeof(float));
    op.first = owned.back().data();
  }
  op.out = room(op.width);
  operations.push_back(op);
  return {{op.width}, op.out, false};
}

Value Sheet::concat(const Node& node, const std::vector<Value>& inputs) {
  Operation op;
  op.run = run_concat;
  for (const Value& value : inputs) {
    if (value.shape.size() != 1) wrong(node, "needs flat inputs, not " + text_of(value.shape));
    op.parts.emplace_back(value.offset, value.shape[0]);
    op.width += value.shape[0];
  }
  op.out = room(op.width);
  operations.push_back(op);
  return {{op.width}, op.out, false};
}

Value Sheet::pair(const Node& node, const Value& a, const Value& b) {
  bool fits = a.shape.size() == b.shape.size() && (node.op == "add" || a.shape == b.shape);
  Shape shape = a.shape;
  for (std::size_t i = 0; fits && i < shape.size(); ++i) {
    fits = a.shape[i] == b.shape[i] || a.shape[i] == 1 || b.shape[i] == 1;
    shape[i] = a.shape[i] == 1 ? b.shape[i] : a.shape[i];
  }
  if (!fits) wrong(node, "has inputs " + text_of(a.shape) + " and " + text_of(b.shape));
  Operation op;
  op.a = a.offset;
  op.b = b.offset;
  op.in = a.width();
  op.other = b.width();
  op.width = count_of(shape);
  op.out = room(op.width);
  op.run = run_add;
  if (node.op == "mask") {
    op.run = run_mask;
    op.factor = real(node, "value");
  } else if (a.shape != b.shape) {
    op.left = spread(a.shape, shape);
    op.right = spread(b.shape, shape);
  }
  operations.push_back(std::move(op));
  return {shape, operations.back().out, false};
}

Value Sheet::plain(const Node& node, const Value& x) {
  Operation op;
  op.a = x.offset;
  op.width = x.width();
  op.out = room(op.width);
  op.run = node.op == "tanh" ? run_tanh : node.op == "relu" ? run_relu : node.op == "scale" ? run_scale : run_centre;
  if (node.op == "scale") {
    op.factor = real(node, "factor");
    op.offset = real(node, "offset");
  } else if (node.op == "centre") {
    if (x.shape.empty() || !x.shape.back()) wrong(node, "needs an axis to take the mean of");
    op.rows = op.width / x.shape.back();
    op.width = x.shape.back();
  }
  operations.push_back(op);
  return {x.shape, op.out, false};
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
    if (made.width() != inputs[0].width()) wrong(node, "cannot make " + text_of(made.shape) + " of " + text_of(inputs[0].shape));
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
  static const char* const OPS[] = {"input", "param", "normalise", "scale", "dense", "conv2d", "max_pool", "embed",
                                    "one_hot", "concat", "reshape", "add", "centre", "tanh", "relu", "mask", "gru",
                                    "lstm"};
  return std::find(std::begin(OPS), std::end(OPS), op) != std::end(OPS);
}

}  // namespace farfield
