// The operators that turn whole numbers into features: one-hot codes and rows of a table.
#include <algorithm>
#include <cstring>

#include "operators.hpp"

namespace farfield {
namespace {

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

}  // namespace farfield
