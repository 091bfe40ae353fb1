// JSON in, the nouns of farfield/types.py out: what a policy sees and does, its network as data, its version.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farfield/columns.hpp"
#include "farfield/json.hpp"

namespace farfield {

/// A shape; CorruptError where it is beyond what an array can hold. None: no axes.
Shape read_shape(const Json* json);

/// One named input or output of a policy; its name is its column's.
struct Field {
  enum class Kind { Box, Discrete, MultiDiscrete, MultiBinary };

  std::string name;
  Kind kind = Kind::Box;
  Dtype dtype = Dtype::Float32;
  Shape shape;
  std::vector<std::int64_t> sizes;
  std::vector<double> low, high;  // one bound for all elements, or one for each; empty: none
  std::string mask;               // actions: the observation column that says what is allowed

  std::size_t count() const { return count_of(shape); }
  std::size_t bytes() const { return count() * size_of(dtype); }
  /// How many choices there are in all (discrete kinds).
  std::size_t choices() const;
};

/// A policy's inputs and outputs.
struct Spec {
  std::vector<Field> observations, actions;

  static Spec read(const Json& json);
  static Spec parse(std::string_view text) { return read(Json::parse(text, "spec")); }
  Json json() const;
  /// Its canonical JSON, as farfield.canonical.to_json writes it.
  std::string write() const { return json().write(); }
  /// What it is called for ever: the SHA-256 of its canonical JSON, 64 hexadecimal digits.
  std::string hash() const;
};

/// One operator of a network: where its inputs come from, and which tensors it reads by role.
struct Node {
  std::string name, op;
  std::vector<std::string> inputs;
  std::vector<std::pair<std::string, std::string>> tensors;  // role, tensor
  Json options;
};

/// How one action is decided from nodes.
struct Head {
  enum class Kind { Categorical, Bernoulli, Gaussian, Epsilon };

  std::string action;
  Kind kind = Kind::Categorical;
  std::vector<std::string> inputs;
};

/// What a network expects of one tensor.
struct Tensor {
  Shape shape;
  Dtype dtype = Dtype::Float32;
};

/// An acyclic graph over a closed set of operators; nodes stand in the order in which they run.
struct Network {
  std::vector<Node> nodes;
  std::map<std::string, Tensor> tensors;
  std::vector<Head> heads;
  std::map<std::string, std::string> outputs;         // "value" -> its node
  std::vector<std::pair<std::string, Shape>> memory;  // recurrent node -> shape of its state, in the order it came

  static Network read(const Json& json);
  static Network parse(std::string_view text) { return read(Json::parse(text, "network")); }
  const Node* find(std::string_view name) const;
  /// Nodes that heads read, each once, in the order of the heads.
  std::vector<std::string> wanted() const;
  /// The nodes that the wanted ones need, in the order in which they run; ConfigError where one is unknown.
  std::vector<const Node*> needed(const std::vector<std::string>& wanted) const;
  /// Names of the tensors that acting reads: what heads reach, never the critic.
  std::vector<std::string> acting() const;
};

/// A tensor by content.
struct TensorRef {
  Dtype dtype = Dtype::None;
  Shape shape;
  std::string sha256;  // 64 hexadecimal digits
};

/// A numbered, immutable set of weights with all that is needed to act with it.
struct Version {
  std::string run;
  std::uint64_t number = 0, attempt = 0, steps = 0;
  Spec spec;
  Network network;
  std::map<std::string, TensorRef> tensors;

  static Version read(const Json& json);
  static Version parse(std::string_view text) { return read(Json::parse(text, "version")); }
};

}  // namespace farfield
