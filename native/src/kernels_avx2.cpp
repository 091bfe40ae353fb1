// The loops for machines with avx2.
#include "kernels.hpp"

#define FARFIELD_WIDTH 8
#include "kernels.inc"

namespace farfield {

extern const Kernels AVX2;
const Kernels AVX2{"avx2", dense, tanh, sigmoid, normalise, finite, finish_gumbel, finish_logistic};

}  // namespace farfield
