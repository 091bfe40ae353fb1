// The Python module farfield._native: the core as Python sees it, and what its tests compare.
#include <nanobind/nanobind.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "farfield/decide.hpp"
#include "farfield/error.hpp"
#include "farfield/noise.hpp"
#include "farfield/program.hpp"
#include "farfield/sha256.hpp"
#include "farfield/wire.hpp"
#include "tracks.hpp"

namespace farfield::python {
namespace {

std::string_view text(const nb::bytes& given) { return {given.c_str(), given.size()}; }
nb::bytes bytes(const std::string& given) { return nb::bytes(given.data(), given.size()); }

/// A network compiled for so many lanes.
class ProgramOf {
 public:
  ProgramOf(nb::bytes network, nb::handle weights, std::size_t lanes, std::vector<std::string> wanted) : lanes_(lanes) {
    const Named named(weights, "tensor");
    const nb::gil_scoped_release release;
    program_ = std::make_unique<Program>(
        Network::parse(text(network)), [&](const std::string& name) { return named.find(name); }, wanted);
    buffers_ = program_->buffers(lanes);
    before_.resize(lanes * program_->state_width());
    after_.resize(before_.size());
    values_.resize(lanes * program_->output_width());
  }

  nb::tuple run(nb::handle columns, nb::handle memory) {
    const Named seen(columns, "column"), states(memory, "memory");
    for (std::size_t i = 0; i < program_->inputs().size(); ++i) {
      const Program::Input& input = program_->inputs()[i];
      const View view = find(seen, "column", input.column, input.shape);
      program_->fill(buffers_, i, lanes_, view.data, view.dtype);
    }
    for (const Program::State& state : program_->states()) {
      const View view = find(states, "memory", state.node, state.shape);
      if (view.dtype != Dtype::Float32)
        spec_error("memory '" + state.node + "': expected float32, came " + name_of(view.dtype));
      if (view.count) std::memcpy(&before_[lanes_ * state.offset], view.data, view.count * sizeof(float));
    }
    program_->run(buffers_, lanes_, before_.data(), after_.data(), values_.data());
    nb::dict values, after;
    for (const Program::Output& output : program_->outputs()) {
      void* data = nullptr;
      values[output.node.c_str()] = make(Dtype::Float32, shaped(output.shape), &data);
      for (std::size_t lane = 0; lane < lanes_ && output.width; ++lane)
        std::memcpy(static_cast<float*>(data) + lane * output.width,
                    &values_[lane * program_->output_width() + output.offset], output.width * sizeof(float));
    }
    for (const Program::State& state : program_->states()) {
      void* data = nullptr;
      after[state.node.c_str()] = make(Dtype::Float32, shaped(state.shape), &data);
      if (state.width) std::memcpy(data, &after_[lanes_ * state.offset], lanes_ * state.width * sizeof(float));
    }
    return nb::make_tuple(values, after);
  }

 private:
  Shape shaped(const Shape& shape) const {
    Shape whole{lanes_};
    whole.insert(whole.end(), shape.begin(), shape.end());
    return whole;
  }

  View find(const Named& named, const std::string& what, const std::string& name, const Shape& shape) const {
    const View view = named.find(name);
    if (!view.data) spec_error(what + " '" + name + "' is missing; hand over what the network reads");
    const Shape came(view.shape, view.shape + view.axes);
    if (came != shaped(shape))
      spec_error(what + " '" + name + "': expected shape " + text_of(shaped(shape)) + ", came " + text_of(came));
    return view;
  }

  std::size_t lanes_;
  std::unique_ptr<Program> program_;
  Floats buffers_;
  std::vector<float> before_, after_, values_;
};

nb::object draw(nb::handle blocks, std::uint64_t seed, const std::string& stream, std::uint64_t first,
                std::size_t steps, std::size_t lanes) {
  std::vector<Block> made;
  for (const nb::handle block : blocks)
    made.emplace_back(distribution_of(nb::cast<std::string>(block[0])), nb::cast<std::size_t>(block[1]));
  Noise noise(std::move(made), seed, stream);
  void* data = nullptr;
  nb::object array = make(Dtype::Float32, {steps, lanes, noise.width()}, &data);
  noise.draw(first, steps * lanes, static_cast<float*>(data));
  return array;
}

/// Scores actions [.., …] under head outputs [.., …]: gives [..].
nb::object log_prob(nb::bytes spec_json, nb::bytes network_json, nb::handle logits, nb::handle action) {
  const Spec spec = Spec::parse(text(spec_json));
  const Network network = Network::parse(text(network_json));
  const Named values(logits, "head output"), chosen(action, "action");
  if (network.heads.empty())
    config_error("the network has no heads, so it decides nothing; build it with a policy or q style");
  std::size_t rows = 0;
  Shape lead;
  for (const Field& field : spec.actions) {
    const View view = chosen.find(field.name);
    if (!view.data || view.axes < field.shape.size() || view.dtype != field.dtype)
      spec_error("action '" + field.name + "': expected " + name_of(field.dtype) + " of shape [.., " +
                 text_of(field.shape) + "]");
    lead.assign(view.shape, view.shape + view.axes - field.shape.size());
    rows = count_of(lead);
  }
  std::vector<Program::Output> outputs;
  std::vector<View> views;
  std::size_t width = 0;
  for (const std::string& name : network.wanted()) {
    const View view = values.find(name);
    if (!view.data || view.dtype != Dtype::Float32 || (rows && view.count % rows))
      spec_error("head output '" + name + "': expected float32 for each of " + std::to_string(rows) + " decisions");
    const std::size_t one = rows ? view.count / rows : 0;
    outputs.push_back({name, {one}, one, width});
    views.push_back(view);
    width += one;
  }
  void* data = nullptr;
  nb::object array = make(Dtype::Float32, lead, &data);
  if (!rows) return array;
  const Heads heads(spec, network, outputs);
  std::vector<float> row(width);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < outputs.size(); ++j)
      std::memcpy(row.data() + outputs[j].offset, static_cast<const float*>(views[j].data) + i * outputs[j].width,
                  outputs[j].width * sizeof(float));
    std::vector<const std::uint8_t*> actions;
    for (const Field& field : spec.actions)
      actions.push_back(static_cast<const std::uint8_t*>(chosen.find(field.name).data) + i * field.bytes());
    static_cast<float*>(data)[i] = heads.log_prob(row.data(), actions.data());
  }
  return array;
}

nb::bytes encode_fragment(const std::string& run, const std::string& stream, std::uint64_t seq, std::uint64_t version,
                          std::uint64_t attempt, const std::string& spec, std::uint64_t decision,
                          const std::string& policy, const std::string& actor, const std::string& source,
                          nb::handle columns) {
  const Named named(columns, "column");
  std::vector<Column> made;
  for (const auto& [name, view] : named.views)
    made.push_back({name, view.dtype, Shape(view.shape, view.shape + view.axes), view.data});
  return bytes(encode(Fragment{run, stream, seq, version, attempt, spec, decision, policy, actor, source}, made));
}

nb::dict named(const Columns& columns) {
  nb::dict found;
  for (const auto& [name, array] : columns) found[name.c_str()] = make(array);
  return found;
}

nb::tuple decode_announcement_of(nb::bytes payload) {
  const Announcement found = decode_announcement(text(payload));
  nb::dict settled;
  for (const auto& [stream, fragments] : found.settled) settled[stream.c_str()] = fragments;
  return nb::make_tuple(bytes(found.version_json), named(found.tensors), found.full, settled);
}

}  // namespace
}  // namespace farfield::python

NB_MODULE(_native, module) {
  using namespace farfield;
  using namespace farfield::python;
  nb::set_leak_warnings(false);  // what lives when the interpreter ends is nobody's mistake
  find_numpy();
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      raise(error);
    }
  });
  add_tracks(module);
  nb::class_<ProgramOf>(module, "Program", "A network compiled for so many lanes; one thread at a time.")
      .def(nb::init<nb::bytes, nb::handle, std::size_t, std::vector<std::string>>(), nb::arg("network"),
           nb::arg("weights"), nb::arg("lanes"), nb::arg("wanted"))
      .def("run", &ProgramOf::run, nb::arg("columns"), nb::arg("memory"),
           "Compute the wanted nodes and the memory after.");
  module.def("draw", &draw, nb::arg("blocks"), nb::arg("seed"), nb::arg("stream"), nb::arg("first"), nb::arg("steps"),
             nb::arg("lanes"), "Draw noise as experience/noise.py does.");
  module.def("log_prob", &log_prob, nb::arg("spec"), nb::arg("network"), nb::arg("logits"), nb::arg("action"),
             "Score whole actions under head outputs.");
  module.def("sha256", [](nb::bytes data) { return hex(sha256(data.c_str(), data.size())); }, nb::arg("data"));
  module.def("spec_hash", [](nb::bytes spec) { return Spec::parse(text(spec)).hash(); }, nb::arg("spec"));
  module.def(
      "canonical", [](nb::bytes json) { return bytes(Json::parse(text(json)).write()); }, nb::arg("json"),
      "Read JSON and write it canonically.");
  module.def("encode_fragment", &encode_fragment, nb::kw_only(), nb::arg("run"), nb::arg("stream"), nb::arg("seq"),
             nb::arg("version"), nb::arg("attempt"), nb::arg("spec"), nb::arg("decision"), nb::arg("policy"),
             nb::arg("actor"), nb::arg("source"), nb::arg("columns"));
  module.def(
      "encode_credit",
      [](const std::string& run, const std::string& stream, std::uint64_t n, double reward, const std::string& mode,
         const std::string& id) { return bytes(encode(Credit{run, stream, n, reward, mode == "set", id})); },
      nb::kw_only(), nb::arg("run"), nb::arg("stream"), nb::arg("n"), nb::arg("reward"), nb::arg("mode"),
      nb::arg("name"));
  module.def(
      "decode_fragment", [](nb::bytes payload) { return named(decode_fragment(text(payload)).second); },
      nb::arg("payload"), "Give the columns of a fragment.");
  module.def("decode_announcement", &decode_announcement_of, nb::arg("payload"),
             "Give manifest, tensors, full, settled.");
  module.def("kernels", &kernels, "Say which loops this machine runs: generic, avx2 or avx512.");
}
