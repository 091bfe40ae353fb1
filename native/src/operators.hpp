// The operators of networks: shapes checked and tensors laid out once, then run for every decision.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "farfield/program.hpp"
#include "kernels.hpp"

namespace farfield {

/// What a run works on.
struct Frame {
  float* arena;
  std::size_t lanes;
  const float* before;
  float* after;
  const Kernels& kernels;

  /// The buffer [lanes, …] that begins at an offset given for one lane.
  float* at(std::size_t offset) const { return arena + offset * lanes; }
};

/// One operation with all that it needs; what a field means is each operator's business.
struct Operation {
  void (*run)(const Operation&, const Frame&) = nullptr;
  std::size_t a = 0, b = 0, out = 0, spare = 0, more = 0;  // offsets
  std::size_t rows = 1, in = 0, width = 0, other = 0;      // sizes for one lane
  std::size_t height = 0, breadth = 0, depth = 0, size = 0, stride = 1, padding = 0;
  std::size_t tall = 0, broad = 0;  // of pictures that come out
  float factor = 1, offset = 0;
  const float *first = nullptr, *second = nullptr, *third = nullptr;
  std::vector<std::uint32_t> left, right;  // where each element comes from, when shapes differ
  std::vector<std::int64_t> sizes;
  std::vector<std::pair<std::size_t, std::size_t>> parts;  // offset, width
};

/// The output of a node: where it is and what it looks like, for one lane.
struct Value {
  Shape shape;
  std::size_t offset = 0;
  bool integers = false;

  std::size_t width() const { return count_of(shape); }
};

/// Where operations, buffers and tensors are gathered while a program is compiled.
class Sheet {
 public:
  explicit Sheet(const Tensors& tensors) : tensors_(tensors) {}

  /// Compiles a node that is neither an input nor recurrent.
  Value add(const Network& network, const Node& node, std::vector<Value> inputs);
  /// Compiles a gru or an lstm; its state of one lane begins at `state`.
  Value recur(const Network& network, const Node& node, const Value& input, std::size_t state);
  /// Room for so many floats of one lane.
  std::size_t room(std::size_t width);
  std::size_t width() const { return width_; }

  std::vector<Operation> operations;
  std::vector<Floats> owned;

 private:
  struct Read {
    View view;
    Shape shape;
    const float* data() const { return static_cast<const float*>(view.data); }
  };
  Read tensor(const Network& network, const Node& node, const std::string& role);
  const float* vector(const Read& tensor);
  const float* matrix(const float* data, std::size_t rows, std::size_t columns);
  void multiply(const Node& node, std::size_t from, std::size_t rows, std::size_t in, const float* kernel,
                const float* bias, std::size_t width, std::size_t to);
  Value converted(const Value& value);
  Value dense(const Network&, const Node&, const Value&);
  Value conv2d(const Network&, const Node&, const Value&);
  Value max_pool(const Node&, const Value&);
  Value normalise(const Network&, const Node&, const Value&);
  Value choices(const Network&, const Node&, const Value&);
  Value concat(const Node&, const std::vector<Value>&);
  Value pair(const Node&, const Value&, const Value&);
  Value plain(const Node&, const Value&);

  const Tensors& tensors_;
  std::size_t width_ = 0;
};

constexpr std::size_t MOST = std::size_t{1} << 28;  // floats of one lane: a gigabyte

/// Refuses a node that no farfield has made.
[[noreturn]] void wrong(const Node& node, const std::string& text);
/// Options of a node; ConfigError where one is missing or out of range.
const Json& option(const Node& node, const char* key);
std::size_t natural(const Node& node, const char* key, std::size_t least);

/// Whether there is an operator of that name.
bool known(const std::string& op);

}  // namespace farfield
