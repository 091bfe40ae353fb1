// The loops for any machine.
#include "kernels.hpp"

#define FARFIELD_WIDTH 4
#include "kernels.inc"

namespace farfield {

extern const Kernels GENERIC;
const Kernels GENERIC{"generic", dense, tanh, sigmoid, normalise, finite, finish_gumbel, finish_logistic};

}  // namespace farfield
