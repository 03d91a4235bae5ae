// A call's block mask as part of its mask_mod: a buffer of tile states that the text reads. Kernels know nothing of
// block masks; they skip what a mask_mod hides.
#pragma once
#include "problem/implementation.hpp"

namespace onepass {

// The problem as implementations see it: without a block mask, whose tensor is the last of the mod buffers.
Problem without_block_mask(const Problem& problem);
Tensors without_block_mask(const Problem& problem, const Tensors& tensors);

// The state that computes: of a plan with a block mask that of the problem without one, else the plan's own.
const PlanState& computing(const PlanState& state);

}  // namespace onepass
