// Calls whose results need no kernel.
#pragma once
#include "problem/problem.hpp"
#include "problem/tensors.hpp"

namespace onepass::plan {

// True of a call on the CPU whose results are complete: they have no elements, or they are gradients that are sums over
// no pairs and have been set to 0. A kernel's loops over an empty batch of any size would be such a call's only work.
bool ran_without_kernel(const Problem& problem, const Tensors& tensors);

}  // namespace onepass::plan
