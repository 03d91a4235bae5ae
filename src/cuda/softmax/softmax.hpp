// cuda.softmax and cuda.softmax_backward: rows by one launch, or cut into pieces by two (softmax.cuh, backward.cuh).
#pragma once
#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/softmax/softmax_params.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda {

extern const Implementation kSoftmaxImplementation;
extern const Implementation kSoftmaxBackwardImplementation;

// How a problem is computed. If pieces > 1, config is that of the second launch, and the
// first has config.part == states.
struct SoftmaxPlan {
  SoftmaxConfig config;
  int pieces, piece;
  std::int64_t rows;
  bool two_launches() const { return pieces > 1 && !config.row_lse; }
  std::size_t workspace_bytes() const;
};
Selected<SoftmaxPlan> select_softmax(const Problem& problem);
// The config of the first of two launches.
SoftmaxConfig states_config(const SoftmaxPlan& plan);
KernelProgram softmax_program(const SoftmaxConfig& config, const std::string& arch);
// A launch's parameters but for the addresses of a call.
SoftmaxParams softmax_params(const Problem& problem, const SoftmaxPlan& plan);
void bind(SoftmaxParams& params, const SoftmaxPlan& plan, const Tensors& tensors, void* workspace);
std::int64_t softmax_blocks(const SoftmaxPlan& plan, const SoftmaxConfig& config);

}  // namespace onepass::cuda
