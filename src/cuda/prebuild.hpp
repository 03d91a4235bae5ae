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
// The kernels of the first implementation that supports the problem there, for devices with any number of
// multiprocessors, then those of append_kv if the problem has a cache. Throws Error (unsupported) with the refusal of
// each implementation. target: "sm_90".
std::vector<TargetKernel> kernels_on(std::string_view target, const Problem& problem);

}  // namespace onepass::cuda
