// A network and its tensors in, a flat list of operations out: the C++ interpreter of networks.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "farfield/columns.hpp"
#include "farfield/spec.hpp"

namespace farfield {

/// Gives the tensor of that name, or a view without data.
using Tensors = std::function<View(const std::string& name)>;
/// Tensors by name from columns, which must live as long.
Tensors tensors_of(const Columns& columns);

/// Floats that begin at a cache line.
class Floats {
 public:
  Floats() = default;
  explicit Floats(std::size_t count);
  float* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> own_;
  float* data_ = nullptr;
  std::size_t size_ = 0;
};

/// What one decision runs. Immutable after it was made; any number of threads may run it, each with buffers of its own.
class Program {
 public:
  /// One observation column that is read, [lanes, …].
  struct Input {
    std::string column;
    Shape shape;
    bool integers;  // read as int32 instead of float32
    std::size_t width, offset;
  };
  /// One wanted node: where it stands in a row of values.
  struct Output {
    std::string node;
    Shape shape;
    std::size_t width, offset;
  };
  /// One recurrent node: where its state begins, for one lane; state of all lanes is [lanes, width] at lanes * offset.
  struct State {
    std::string node;
    Shape shape;
    std::size_t width, offset;
  };

  /// Copies the tensors, laid out for speed. ConfigError for an unknown operator, CorruptError for a wrong tensor.
  Program(const Network& network, const Tensors& tensors, const std::vector<std::string>& wanted);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const std::vector<Input>& inputs() const;
  const std::vector<Output>& outputs() const;
  const std::vector<State>& states() const;
  std::size_t input_width() const;   // floats of one lane's observations
  std::size_t output_width() const;  // floats of one lane's values
  std::size_t state_width() const;   // floats of one lane's memory

  /// Buffers for so many lanes.
  Floats buffers(std::size_t lanes) const;
  /// Whether buffers of the other program fit this one too.
  bool like(const Program& other) const;

  /// Where the observations of input i go before a run: float32 or int32 [lanes, …].
  float* input(const Floats& buffers, std::size_t i, std::size_t lanes) const;
  /// Converts an array [lanes, …] of any type into input i.
  void fill(const Floats& buffers, std::size_t i, std::size_t lanes, const void* data, Dtype dtype) const;
  /// Computes values [lanes, output_width] and the memory after; `before` and `after` may be the same.
  void run(const Floats& buffers, std::size_t lanes, const float* before, float* after, float* values) const;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

/// Which kernels this machine runs: "avx512", "avx2" or "generic".
const char* kernels();

}  // namespace farfield
