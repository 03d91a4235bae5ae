// The host half of append.cuh.
#pragma once
#include <string>

#include "cuda/append/append.hpp"
#include "cuda/host/kernels.hpp"
#include "problem/append/append.hpp"

namespace onepass::cuda {

KernelProgram append_program(const AppendConfig& config, const std::string& arch);

struct AppendPlan {
  AppendConfig config;
  AppendParams params;
};
// Throws Error (unsupported) if there are more tokens, heads or keys than the kernel counts.
AppendPlan plan_append(const AppendProblem& problem, const AppendTensors& tensors);

// problem: append_problem_of(tensors). Launches on the stream and returns.
void append_kv(const AppendProblem& problem, const AppendTensors& tensors, Stream stream);

}  // namespace onepass::cuda
