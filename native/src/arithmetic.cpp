// The operators that compute numbers from numbers: products, sums, squashing, clipping.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "farfield/error.hpp"
#include "operators.hpp"

namespace farfield {
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

}  // namespace

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

}  // namespace farfield
