// The operators on pictures: windows laid out and multiplied, or their largest values taken.
#include <algorithm>
#include <cstring>
#include <limits>

#include "farfield/error.hpp"
#include "operators.hpp"

namespace farfield {
namespace {

/// Lays the windows of pictures out as rows, zero where they hang over the edge.
void run_windows(const Operation& op, const Frame& f) {
  const std::size_t line = op.breadth * op.depth, row = op.size * op.depth;
  float* y = f.at(op.out);
  for (std::size_t lane = 0; lane < f.lanes; ++lane) {
    const float* x = f.at(op.a) + lane * op.height * line;
    for (std::size_t top = 0; top < op.tall; ++top)
      for (std::size_t left = 0; left < op.broad; ++left)
        for (std::size_t i = 0; i < op.size; ++i, y += row) {
          const std::ptrdiff_t from = std::ptrdiff_t(top * op.stride + i) - std::ptrdiff_t(op.padding);
          const std::ptrdiff_t first = std::ptrdiff_t(left * op.stride) - std::ptrdiff_t(op.padding);
          if (from < 0 || from >= std::ptrdiff_t(op.height)) {
            std::fill_n(y, row, 0.0f);
            continue;
          }
          const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(first, 0);
          const std::ptrdiff_t end = std::min<std::ptrdiff_t>(first + std::ptrdiff_t(op.size), op.breadth);
          const std::size_t skip = std::size_t(std::min<std::ptrdiff_t>(begin - first, op.size)) * op.depth;
          const std::size_t take = end > begin ? std::size_t(end - begin) * op.depth : 0;
          std::fill_n(y, skip, 0.0f);
          if (take) std::memcpy(y + skip, x + from * line + begin * op.depth, take * sizeof(float));
          if (skip + take < row) std::fill_n(y + skip + take, row - skip - take, 0.0f);
        }
  }
}

void run_max_pool(const Operation& op, const Frame& f) {
  const std::size_t line = op.breadth * op.depth;
  float* y = f.at(op.out);
  for (std::size_t lane = 0; lane < f.lanes; ++lane) {
    const float* x = f.at(op.a) + lane * op.height * line;
    for (std::size_t top = 0; top < op.tall; ++top)
      for (std::size_t left = 0; left < op.broad; ++left, y += op.depth) {
        std::fill_n(y, op.depth, -std::numeric_limits<float>::infinity());
        for (std::size_t i = 0; i < op.size; ++i)
          for (std::size_t j = 0; j < op.size; ++j) {
            const std::size_t row = top * op.stride + i, column = left * op.stride + j;  // in the padded picture
            if (row < op.padding || row - op.padding >= op.height || column < op.padding ||
                column - op.padding >= op.breadth)
              continue;
            const float* from = x + (row - op.padding) * line + (column - op.padding) * op.depth;
            for (std::size_t c = 0; c < op.depth; ++c) y[c] = std::max(y[c], from[c]);
          }
      }
  }
}

void pictures(const Node& node, const Value& input, Operation& op) {
  if (input.shape.size() != 3) wrong(node, "needs pictures [height, width, channels], not " + text_of(input.shape));
  op.height = input.shape[0];
  op.breadth = input.shape[1];
  op.depth = input.shape[2];
  op.stride = natural(node, "stride", 1);
  op.padding = natural(node, "padding", 0);
  op.a = input.offset;
  const std::size_t tall = op.height + 2 * op.padding, broad = op.breadth + 2 * op.padding;
  if (op.size < 1 || tall < op.size || broad < op.size || !op.depth)
    wrong(node, "has windows of " + std::to_string(op.size) + " on pictures " + text_of(input.shape));
  op.tall = (tall - op.size) / op.stride + 1;
  op.broad = (broad - op.size) / op.stride + 1;
}

}  // namespace

Value Sheet::conv2d(const Network& network, const Node& node, const Value& x) {
  const Read kernel = tensor(network, node, "kernel"), bias = tensor(network, node, "bias");
  if (kernel.shape.size() != 4 || kernel.shape[0] != kernel.shape[1] || x.shape.size() != 3 ||
      kernel.shape[2] != x.shape[2] || bias.view.count != kernel.shape[3])
    wrong(node, "has the kernel " + text_of(kernel.shape) + " for pictures " + text_of(x.shape));
  Operation op;
  op.size = kernel.shape[0];
  pictures(node, x, op);
  const std::size_t in = op.size * op.size * op.depth, rows = op.tall * op.broad, width = kernel.shape[3];
  if (in > MOST || rows > MOST / in) wrong(node, "needs more than a gigabyte for its windows");
  const Value made{{op.tall, op.broad, width}, room(rows * width), false};
  std::size_t from = x.offset;
  if (op.size > 1 || op.stride > 1 || op.padding > 0) {  // otherwise pixels are their own windows
    from = op.out = room(rows * in);
    op.run = run_windows;
    operations.push_back(op);
  }
  multiply(node, from, rows, in, matrix(kernel.data(), in, width), vector(bias), width, made.offset);
  return made;
}

Value Sheet::max_pool(const Node& node, const Value& x) {
  Operation op;
  op.size = natural(node, "size", 1);
  pictures(node, x, op);
  op.run = run_max_pool;
  op.out = room(op.tall * op.broad * op.depth);
  operations.push_back(op);
  return {{op.tall, op.broad, op.depth}, op.out, false};
}

}  // namespace farfield
