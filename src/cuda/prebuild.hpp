// Which kernel a problem would get on a device that is not here: what `onepass prebuild` compiles for other machines.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cuda/compile/program.hpp"
#include "cuda/target.hpp"
#include "problem/implementation.hpp"

namespace onepass::cuda {

struct TargetKernel {
  const char* implementation;
  KernelProgram program;
};
// The kernels of the first implementation that supports the problem there, in the order of their launches, after those
// of append_kv if the problem has a cache. Throws Error (unsupported) with the refusal of each implementation.
std::vector<TargetKernel> kernels_on(const Target& target, const Problem& problem);

}  // namespace onepass::cuda
