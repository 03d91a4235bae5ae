// Appending to a cache on the CPU.
#pragma once
#include "problem/append/append.hpp"

namespace onepass::cpu {

// problem: append_problem_of(tensors).
void append_kv(const AppendProblem& problem, const AppendTensors& tensors, Executor& executor);

}  // namespace onepass::cpu
