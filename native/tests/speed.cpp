// How long a decision takes: 8 -> 64 -> 64 -> 4, exploring, recorded, fragments encoded.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "farfield/program.hpp"
#include "farfield/track.hpp"

using namespace farfield;

int main() {
  const std::string spec = R"({"actions":[{"dtype":"int64","kind":"discrete","name":"action","shape":[],"sizes":[4]}],)"
                           R"("observations":[{"dtype":"float32","kind":"box","name":"obs","shape":[8]}]})";
  const auto dense = [](const std::string& name, const std::string& source) {
    return R"({"name":")" + name + R"(","op":"dense","inputs":[")" + source + R"("],"tensors":{"kernel":")" + name +
           R"(/kernel","bias":")" + name + R"(/bias"}})";
  };
  const auto tanh = [](const std::string& name) {
    return R"({"name":")" + name + R"(/tanh","op":"tanh","inputs":[")" + name + R"("]})";
  };
  std::string tensors;
  Columns weights;
  const std::size_t widths[] = {8, 64, 64, 4};
  for (int layer = 0; layer < 3; ++layer) {
    const std::string name = std::to_string(layer);
    const std::size_t in = widths[layer], out = widths[layer + 1];
    std::vector<float> kernel(in * out), bias(out, 0.1f);
    for (std::size_t i = 0; i < kernel.size(); ++i)
      kernel[i] = static_cast<float>(static_cast<int>(i * 7919 % 201) - 100) / 500.0f;
    weights.emplace_back(name + "/kernel", Array::of<float>({in, out}, kernel));
    weights.emplace_back(name + "/bias", Array::of<float>({out}, bias));
    tensors += (layer ? "," : "") + std::string("\"") + name + R"(/kernel":{"shape":[)" + std::to_string(in) + "," +
               std::to_string(out) + R"(]},")" + name + R"(/bias":{"shape":[)" + std::to_string(out) + "]}";
  }
  const std::string network =
      R"({"nodes":[{"name":"in","op":"input","inputs":["obs"],"options":{"shape":[8],"dtype":"float32"}},)" +
      dense("0", "in") + "," + tanh("0") + "," + dense("1", "0/tanh") + "," + tanh("1") + "," + dense("2", "1/tanh") +
      R"(],"tensors":{)" + tensors + R"(},"heads":[{"action":"action","kind":"categorical","inputs":["2"]}]})";
  const std::string version = R"({"run":"r","number":1,"attempt":0,"parent":null,"steps":0,"tensors":{},"spec":)" +
                              spec + R"(,"network":)" + network + "}";
  const auto slot = std::make_shared<Slot>();
  slot->put(Snapshot::make(version, weights));
  std::size_t bytes = 0;
  Track track(slot, Spec::parse(spec), {"r", "main", "", "00112233445566778899aabbccddeeff", 1, 128, 0},
              [&](std::string payload, std::uint64_t) { bytes += payload.size(); });
  using Clock = std::chrono::steady_clock;
  const auto nanoseconds = [](Clock::duration time) { return std::chrono::duration<double, std::nano>(time).count(); };
  float obs[8] = {};
  std::vector<double> each(200000);
  const auto start = Clock::now();
  for (std::size_t i = 0; i < each.size(); ++i) {
    obs[i % 8] = static_cast<float>(i % 100) / 50.0f - 1.0f;
    const auto before = Clock::now();
    track.act(obs, 8);
    each[i] = nanoseconds(Clock::now() - before);
    track.reward(1.0);
  }
  const double all = nanoseconds(Clock::now() - start) / static_cast<double>(each.size());
  std::sort(each.begin(), each.end());
  std::printf(
      "kernels %s: act p50 %.0f ns, p99 %.0f ns, p99.9 %.0f ns; act + reward + clock %.0f ns; %.0f bytes a step\n",
      kernels(), each[each.size() / 2], each[each.size() * 99 / 100], each[each.size() * 999 / 1000], all,
      static_cast<double>(bytes) / static_cast<double>(each.size()));
  const auto making = Clock::now();
  for (int i = 0; i < 200; ++i) slot->put(Snapshot::make(version, weights));
  std::printf("a snapshot %.0f us\n", nanoseconds(Clock::now() - making) / 200e3);
}
