// Networks: every operator gives what NumPy gave, and what is no network is refused.
#include "farfield/program.hpp"

#include <random>

#include "golden.hpp"

using namespace farfield;

namespace {

std::vector<std::string> texts(const Json& json) {
  std::vector<std::string> found;
  for (const Json& one : json.items()) found.push_back(one.text());
  return found;
}

/// Runs a program over named columns and memory.
void run(const Program& program, std::size_t lanes, const Columns& columns, std::vector<float>& memory,
         std::vector<float>& values) {
  const Floats buffers = program.buffers(lanes);
  for (std::size_t i = 0; i < program.inputs().size(); ++i) {
    const Array& array = find(columns, program.inputs()[i].column);
    program.fill(buffers, i, lanes, array.bytes.data(), array.dtype);
  }
  values.assign(lanes * program.output_width(), 0.0f);
  program.run(buffers, lanes, memory.data(), memory.data(), values.data());
}

}  // namespace

TEST(Program, EveryOperatorGivesWhatNumpyGives) {
  for (const Json& told : golden().at("networks").items()) {
    const std::size_t lanes = told.at("lanes").natural();
    const Network network = Network::read(told.at("network"));
    const Columns tensors = columns_of(told.at("tensors")), before = columns_of(told.at("memory"));
    const Program program(network, tensors_of(tensors), texts(told.at("wanted")));
    std::vector<float> memory(lanes * program.state_width()), values;
    for (const Program::State& state : program.states())
      std::memcpy(&memory[lanes * state.offset], find(before, state.node).bytes.data(),
                  lanes * state.width * sizeof(float));
    run(program, lanes, columns_of(told.at("columns")), memory, values);
    const Columns expected = columns_of(told.at("values")), after = columns_of(told.at("after"));
    for (const Program::Output& output : program.outputs())
      for (std::size_t lane = 0; lane < lanes; ++lane)
        for (std::size_t i = 0; i < output.width; ++i) {
          const float wanted = find(expected, output.node).as<float>()[lane * output.width + i];
          EXPECT_NEAR(values[lane * program.output_width() + output.offset + i], wanted, 1e-5 * (1 + std::abs(wanted)))
              << output.node;
        }
    for (const Program::State& state : program.states())
      expect_near(&memory[lanes * state.offset], find(after, state.node), 1e-5, state.node);
  }
}

TEST(Program, LanesDoNotTouchOneAnother) {
  const Json& told = golden().at("networks").items()[1];
  const Network network = Network::read(told.at("network"));
  const Columns tensors = columns_of(told.at("tensors")), columns = columns_of(told.at("columns"));
  const Program program(network, tensors_of(tensors), texts(told.at("wanted")));
  std::vector<float> all(5 * program.state_width()), together, one(program.state_width()), alone;
  run(program, 5, columns, all, together);
  for (std::size_t lane = 0; lane < 5; ++lane) {
    Columns row;
    for (const auto& [name, array] : columns) {
      Array cut(array.dtype, array.shape);
      cut.shape[0] = 1;
      cut.bytes.assign(array.bytes.begin() + lane * array.bytes.size() / 5,
                       array.bytes.begin() + (lane + 1) * array.bytes.size() / 5);
      row.emplace_back(name, cut);
    }
    std::fill(one.begin(), one.end(), 0.0f);
    run(program, 1, row, one, alone);
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(alone[i], together[lane * alone.size() + i], 1e-5);
  }
}

TEST(Program, MissingAndMisshapenTensorsAreNamed) {
  const Json& told = golden().at("networks").items()[0];
  const Network network = Network::read(told.at("network"));
  for (const auto& [name, array] : columns_of(told.at("tensors"))) {
    Columns tensors = columns_of(told.at("tensors"));
    for (auto& [known, one] : tensors)
      if (known == name) one = Array(Dtype::Float32, {array.count() + 1});
    EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { Program(network, tensors_of(tensors), texts(told.at("wanted"))); }))
        << name;
    const Tensors lacking = [&](const std::string& wanted) {
      return wanted == name ? View() : tensors_of(tensors)(wanted);
    };
    EXPECT_TRUE(raises(Error::Kind::Corrupt, [&] { Program(network, lacking, texts(told.at("wanted"))); })) << name;
  }
  EXPECT_TRUE(raises(Error::Kind::Config, [&] { Program(network, tensors_of({}), {"nobody"}); }));
}

TEST(Program, DamagedNetworksAreRefusedAndNeverCrash) {
  const Json& told = golden().at("networks").items()[0];
  const std::string text = told.at("network").write();
  const Columns tensors = columns_of(told.at("tensors")), columns = columns_of(told.at("columns"));
  std::mt19937 random(3);
  int run_anyway = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string broken = text;
    for (unsigned i = 0; i <= random() % 3; ++i) {
      std::size_t at = random() % broken.size();
      for (int tries = 0; tries < 40 && (broken[at] < '0' || broken[at] > '9'); ++tries) at = random() % broken.size();
      broken[at] = static_cast<char>('0' + random() % 10);
    }
    try {
      const Program program(Network::parse(broken), tensors_of(tensors), texts(told.at("wanted")));
      bool fits = true;
      for (const Program::Input& input : program.inputs())
        fits = fits && find(columns, input.column).count() == input.width;
      std::vector<float> memory(program.state_width()), values;
      if (fits) run(program, 1, columns, memory, values);
      ++run_anyway;
    } catch (const Error&) {
    } catch (const std::runtime_error&) {  // a column that is not there
    }
  }
  EXPECT_GT(run_anyway, 0);
}
