// The recurrent operators: inputs and the state before in, outputs and the state after out.
#include <algorithm>
#include <cstring>

#include "farfield/error.hpp"
#include "operators.hpp"

namespace farfield {
namespace {

/// The projections of input (with bias) into `a` and of the state into `b`, [N, gates * H] each.
void project(const Operation& op, const Frame& f, const float* hidden) {
  f.kernels.dense(f.at(op.a), f.lanes, op.in, op.first, op.second, op.other, f.at(op.spare));
  f.kernels.dense(hidden, f.lanes, op.width, op.third, nullptr, op.other, f.at(op.more));
}

/// Gates are reset, update, candidate; the state is what comes out.
void run_gru(const Operation& op, const Frame& f) {
  const std::size_t H = op.width;
  const float* before = f.before + op.b * f.lanes;
  float* after = f.after + op.b * f.lanes;
  project(op, f, before);
  for (std::size_t lane = 0; lane < f.lanes; ++lane) {
    float *a = f.at(op.spare) + lane * 3 * H, *b = f.at(op.more) + lane * 3 * H;
    const float* h = before + lane * H;
    float* out = f.at(op.out) + lane * H;
    for (std::size_t i = 0; i < 2 * H; ++i) a[i] += b[i];
    f.kernels.sigmoid(a, a, 2 * H);
    float *candidate = a + 2 * H, *part = b + 2 * H;
    for (std::size_t i = 0; i < H; ++i) candidate[i] += a[i] * part[i];
    f.kernels.tanh(candidate, candidate, H);
    for (std::size_t i = 0; i < H; ++i) out[i] = candidate[i] + a[H + i] * (h[i] - candidate[i]);
  }
  std::memcpy(after, f.at(op.out), f.lanes * H * sizeof(float));
}

/// Gates are in, forget, cell, out; the state is h and c side by side.
void run_lstm(const Operation& op, const Frame& f) {
  const std::size_t H = op.width;
  const float* before = f.before + op.b * f.lanes;
  float* after = f.after + op.b * f.lanes;
  float* hidden = f.at(op.out);
  for (std::size_t lane = 0; lane < f.lanes; ++lane)
    std::memcpy(hidden + lane * H, before + lane * 2 * H, H * sizeof(float));
  project(op, f, hidden);
  for (std::size_t lane = 0; lane < f.lanes; ++lane) {
    float *a = f.at(op.spare) + lane * 4 * H, *b = f.at(op.more) + lane * 4 * H;
    for (std::size_t i = 0; i < 4 * H; ++i) a[i] += b[i];
    f.kernels.sigmoid(a, a, 2 * H);
    f.kernels.tanh(a + 2 * H, a + 2 * H, H);
    f.kernels.sigmoid(a + 3 * H, a + 3 * H, H);
    const float* cell = before + lane * 2 * H + H;
    float *next = after + lane * 2 * H + H, *out = hidden + lane * H;
    for (std::size_t i = 0; i < H; ++i) next[i] = a[H + i] * cell[i] + a[i] * a[2 * H + i];
    f.kernels.tanh(next, out, H);
    for (std::size_t i = 0; i < H; ++i) out[i] *= a[3 * H + i];
    std::memcpy(after + lane * 2 * H, out, H * sizeof(float));
  }
}

}  // namespace

Value Sheet::recur(const Network& network, const Node& node, const Value& input, std::size_t state) {
  const Value x = converted(input);
  const std::size_t gates = node.op == "lstm" ? 4 : 3;
  const Read kernel = tensor(network, node, "input"), recurrent = tensor(network, node, "recurrent");
  const Read bias = tensor(network, node, "bias");
  const std::size_t H = recurrent.shape.empty() ? 0 : recurrent.shape[0];
  if (x.shape.size() != 1 || kernel.shape != Shape{x.shape[0], gates * H} || recurrent.shape != Shape{H, gates * H} ||
      bias.view.count != gates * H)
    config_error("node '" + node.name + "' (" + node.op + ") has tensors " + text_of(kernel.shape) + " and " +
                 text_of(recurrent.shape) + " for inputs " + text_of(x.shape) +
                 "; the network was not made by farfield");
  Operation op;
  op.run = node.op == "lstm" ? run_lstm : run_gru;
  op.a = x.offset;
  op.b = state;
  op.in = x.shape[0];
  op.width = H;
  op.other = gates * H;
  op.first = matrix(kernel.data(), op.in, op.other);
  op.second = vector(bias);
  op.third = matrix(recurrent.data(), H, op.other);
  op.spare = room(op.other);
  op.more = room(op.other);
  op.out = room(H);
  operations.push_back(op);
  return {{H}, op.out, false};
}

}  // namespace farfield
