// The few loops that time is spent in: built three times, for any machine, for AVX2 and for AVX-512, chosen once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farfield {

constexpr std::size_t PAD = 16;  // matrices have rows of a multiple of so many floats, the last ones zero

constexpr std::size_t padded(std::size_t count) { return (count + PAD - 1) / PAD * PAD; }

struct Kernels {
  const char* name;
  /// y [rows, out] = x [rows, in] · kernel [in, padded(out)] + bias [padded(out)] (none: 0).
  void (*dense)(const float* x, std::size_t rows, std::size_t in, const float* kernel, const float* bias,
                std::size_t out, float* y);
  void (*tanh)(const float* x, float* y, std::size_t count);
  void (*sigmoid)(const float* x, float* y, std::size_t count);
  /// y = clip((x - mean) / deviation).
  void (*normalise)(const float* x, const float* mean, const float* deviation, float clip, float* y, std::size_t count);
  bool (*finite)(const float* x, std::size_t count);
  void (*finish_gumbel)(const std::uint64_t* raw, float* out, std::size_t count);
  void (*finish_logistic)(const std::uint64_t* raw, float* out, std::size_t count);
};

extern const Kernels GENERIC;
#ifdef FARFIELD_X86
extern const Kernels AVX2, AVX512;
#endif

/// The best of them that this machine can run.
const Kernels& best_kernels();
/// Those that this machine can run, best first, ended by null.
const Kernels* const* runnable_kernels();

}  // namespace farfield
