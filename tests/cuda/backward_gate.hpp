// The kernels before and after a backward's main kernel, whichever family that is of.
#pragma once
#include <gtest/gtest.h>

#include "code_gate.hpp"
#include "cuda/attention/backward/host.hpp"

namespace onepass::cuda {

// spilled: bytes of a lane that the kernel behind the main one may keep in local memory.
inline void expect_code(const BackwardPrograms& around, int spilled = 0) {
  for (const KernelProgram* program : {&around.pre, &around.post, &around.sums}) {
    const bool calls = program == &around.post;  // repairs rows that are not finite
    EXPECT_EQ(wrong_code(compile(*program), {256, {}, calls, calls ? spilled : 0}), "")
        << program->entry << " of " << program->file;
  }
}

}  // namespace onepass::cuda
