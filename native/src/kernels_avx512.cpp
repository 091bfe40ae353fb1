// The loops for machines with avx512.
#include "kernels.hpp"

#define FARFIELD_WIDTH 16
#include "kernels.inc"

namespace farfield {

extern const Kernels AVX512;
const Kernels AVX512{"avx512", dense, tanh, sigmoid, normalise, finite, finish_gumbel, finish_logistic};

}  // namespace farfield
