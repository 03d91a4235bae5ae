// cuda.flat_gemm: few rows times a wide matrix, by one launch (flat_gemm.cuh).
#pragma once
#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/gemm/flat_gemm_params.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda {

extern const Implementation kFlatGemmImplementation;

// How a problem is cut, by its shape alone.
struct FlatGemmPlan {
  FlatGemmConfig config;
  int tiles_n, splits, split_steps, group, blocks;
  int each, more;  // columns of a tile, at least; tiles that have one more
  std::size_t partial_bytes, workspace_bytes;
};
// The plan for given rows of x, rows of w per tile and splits. blocks: the largest number of CTAs, which share n evenly
// if there is one split.
FlatGemmPlan cut_flat_gemm(const Problem& problem, const FlatGemmConfig& config, int splits, int blocks);
// shared_bytes: the most that a block may have.
Selected<FlatGemmPlan> select_flat_gemm(const Problem& problem, int shared_bytes, int multiprocessors);
KernelProgram flat_gemm_program(const FlatGemmConfig& config, const std::string& arch);
// But for the addresses of a call, and with them the workspace's.
FlatGemmParams flat_gemm_params(const Problem& problem, const FlatGemmPlan& plan);

}  // namespace onepass::cuda
