// The partial results of tasks, and the gradients as their sums in the order of the parts.
#pragma once
#include "base/workspace.hpp"
#include "cpu/backward/cut.hpp"

namespace onepass::cpu::backward {

// backward.hpp, Call: has the shapes. nullptr: tasks write what is final.
struct Parts {
  float *delta = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr, *dbias = nullptr;
  double *dslopes = nullptr, *dsinks = nullptr;
  std::uint8_t *dq_seen = nullptr, *dkv_seen = nullptr;
};
Parts book_parts(Workspace& workspace, const Problem& problem, const Plan& plan);

// Zeros where tasks add, or may leave out what they have nothing for.
void clear(const Problem& problem, const Tensors& arguments, const Plan& plan, const Parts& parts, Executor& executor);
void sum_parts(const Problem& problem, const Tensors& arguments, const Plan& plan, const Parts& parts,
               const Kernels& kernels, Executor& executor);

}  // namespace onepass::cpu::backward
