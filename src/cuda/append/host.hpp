// The host half of append.cuh.
#pragma once
#include <string>
#include <vector>

#include "cuda/append/append.hpp"
#include "cuda/host/kernels.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda {

extern const Implementation kAppendImplementation;  // "cuda.append"

KernelProgram append_program(const AppendConfig& config, const std::string& arch);

// The kernels that write a cache like the problem's: tokens as they are, or rotated, by halves or interleaved, with
// tables of fp32 or of the new tokens' dtype; to pages also by slots. None if the problem has no cache.
std::vector<KernelProgram> append_programs(const Problem& problem, const std::string& arch);

struct AppendPlan {
  AppendConfig config;
  int rotated, copied, values, items;  // as AppendParams has them
  long long all_items;
};
// Refused if there are more tokens, heads or keys than the kernel counts.
Selected<AppendPlan> select_append(const Problem& problem);
AppendParams append_params(const Problem& problem, const AppendPlan& plan, const Tensors& tensors);

}  // namespace onepass::cuda
