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
// Of the first implementation that computes the problem there, in the order of their launches, behind those of
// append_kv where the problem has a cache; throws Error (unsupported) with the sentence of each.
std::vector<TargetKernel> kernels_on(const Target& target, const Problem& problem);

}  // namespace onepass::cuda
