// cuda.merge: finished partial results become one, by one launch (merge.cuh).
#pragma once
#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/merge/merge_params.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda {

extern const Implementation kMergeImplementation;

Selected<MergeConfig> select_merge(const Problem& problem);
KernelProgram merge_program(const MergeConfig& config, const std::string& arch);

// A launch's parameters; the kernel reads as many parts as its config holds.
using MergeArguments = MergeParams<kLargeMerge>;
MergeArguments merge_arguments(const Problem& problem, const MergeConfig& config, const Tensors& tensors);
std::int64_t merge_blocks(const Problem& problem, const MergeConfig& config);

}  // namespace onepass::cuda
