// The kernels before and after a backward's main kernel, whichever family that is of.
#pragma once
#include <gtest/gtest.h>

#include "code_gate.hpp"
#include "cuda/attention/backward/host.hpp"

namespace onepass::cuda {

inline void expect_code(const BackwardPrograms& around) {
  for (const KernelProgram* program : {&around.pre, &around.post, &around.sums}) {
    const bool calls = program == &around.post;  // repairs rows that are not finite
    EXPECT_EQ(wrong_code(compile(*program), {256, {}, calls}), "") << program->entry << " of " << program->file;
  }
}

}  // namespace onepass::cuda
