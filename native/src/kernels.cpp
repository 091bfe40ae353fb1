// This machine in, the loops that suit it best out.
#include "kernels.hpp"

#include "farfield/program.hpp"

namespace farfield {
namespace {

struct Choices {
  const Kernels* found[4] = {};

  Choices() {
    int count = 0;
#ifdef FARFIELD_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
      found[count++] = &AVX512;
    if (avx2) found[count++] = &AVX2;
#endif
    found[count] = &GENERIC;
  }
};

const Choices& choices() {
  static const Choices made;
  return made;
}

}  // namespace

const Kernels& best_kernels() { return *choices().found[0]; }
const Kernels* const* runnable_kernels() { return choices().found; }
const char* kernels() { return best_kernels().name; }

}  // namespace farfield
